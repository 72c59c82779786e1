"""The command line. Each verb parses, calls one public function, and prints."""
