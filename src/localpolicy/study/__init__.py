"""What to measure: sweep, loop, paper, demo, go."""
