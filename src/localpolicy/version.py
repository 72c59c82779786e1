"""This package's version: the one place that says it; pyproject.toml reads it."""

__version__ = "0.2.0"
