"""What many runs make together: sweeps, the loop, the paper's tables, the demo, `lpi go`."""
