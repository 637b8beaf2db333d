"""Learner, credit, publish, runs and the command line."""
