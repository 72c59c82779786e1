"""The words every other layer speaks: types, the one mean, errors, files and settings."""
