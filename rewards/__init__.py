"""Graders: an episode in text to a typed outcome."""
