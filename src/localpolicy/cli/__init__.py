"""The command line: one short file per verb. Each parses, calls one public function, and prints."""
