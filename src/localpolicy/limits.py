"""Limits that the command line and the settings share: neither needs to import the other for them."""

LARGEST_SEED = 2**32 - 1  # what every generator takes
