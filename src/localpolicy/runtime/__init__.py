"""Utilities for all packages: files that are whole or absent, locks, frames, progress, ranks, interrupts."""
