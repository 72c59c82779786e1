"""What every room stands on: files that are whole or absent, locks, progress, ranks, interrupts."""
