"""Runs on disk: the configuration of a run, and the folder that holds it."""
