"""A comparison as tables, as a page, and as findings in words."""
