"""Sandboxes that live as long as an episode: one protocol, several ways to confine."""
