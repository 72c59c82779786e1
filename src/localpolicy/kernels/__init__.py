"""All Triton code: what a GPU runs instead of chunks and plain operations."""
