"""Real data that packages bring: read where it is installed, never a part of this repository."""
