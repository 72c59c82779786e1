"""The demo shown: its page, and what its numbers say."""
