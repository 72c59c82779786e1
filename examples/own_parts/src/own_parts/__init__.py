"""An objective, a backbone and a reader of one's own."""
