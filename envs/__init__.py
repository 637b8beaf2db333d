"""Environments, tools, sandboxes and tasks: the world in text."""
