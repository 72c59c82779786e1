"""Policies and data become measurements: ranks, rewards, values, divergence, truth. Numbers, no sentences."""
