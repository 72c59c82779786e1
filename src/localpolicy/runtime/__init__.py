"""What every room stands on: files that are whole or absent, locks, frames, progress, ranks, interrupts."""
