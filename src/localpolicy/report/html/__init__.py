"""The page itself: charts, tables and markup of one self-contained HTML file."""
