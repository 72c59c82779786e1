"""Checks, one question a file: each gives claims about a case."""
