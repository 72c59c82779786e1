"""Studies of several policies: sweep, loop, demo, go."""
