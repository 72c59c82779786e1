"""Training: the loop, its configuration, checks before it starts, and checkpoints that resume exactly."""
