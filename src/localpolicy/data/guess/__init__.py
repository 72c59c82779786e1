"""What a log's columns and events mean, guessed from names and values before the log is prepared."""
