"""Environments of other projects, unchanged: one file per interface."""
