"""The environment my_env: name the larger of two cards."""
