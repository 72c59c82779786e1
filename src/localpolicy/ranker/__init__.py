"""Layer on an existing ranker: its log of requests, critics of its lists, and the layer that improves them."""
