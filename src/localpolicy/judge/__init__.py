"""Claims on measurements: comparison, gate and their rules."""
