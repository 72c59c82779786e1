"""Guesses of what a log's columns and events mean, from names and values, before the log is prepared."""
