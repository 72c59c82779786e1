"""Whole studies in simulated worlds, whose truth is known: the demo, and the loop of deploying and retraining."""
