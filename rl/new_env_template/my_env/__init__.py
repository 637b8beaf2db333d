"""The environment my_env: add up two cards."""
