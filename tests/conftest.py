"""What holds for all tests: on a busy machine a slow example is no failure."""

from hypothesis import settings

settings.register_profile("limosa", deadline=None)
settings.load_profile("limosa")
