"""The loop of deploying, logging and retraining in a world whose truth is known."""
