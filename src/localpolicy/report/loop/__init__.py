"""The loop shown: its page and what went wrong in words."""
