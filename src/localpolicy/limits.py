"""Limits that the command line and the settings share; here, since neither needs the other to know them."""

LARGEST_SEED = 2**32 - 1  # what every generator takes
