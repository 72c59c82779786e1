"""Serving a policy: lists for histories."""
