"""What runs in the virtual environments of other projects: scripts, never imported by us."""
