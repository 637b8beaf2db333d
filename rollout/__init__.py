"""From task to trajectory: rendering, agent loops, engines, Ray actors."""
