"""The chat APIs that programs speak: each turns requests and replies into those of `chat.py`."""
