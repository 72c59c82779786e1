"""The tables and figures of the paper: `lpi paper`."""
