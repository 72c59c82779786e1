"""What to measure: sweep, loop, demo, go."""
