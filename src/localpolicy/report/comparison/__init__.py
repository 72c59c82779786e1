"""A comparison shown: its tables, its page, its findings in words."""
