"""From a raw log to batches: events, prepare, the store on disk, and batches cut from it."""
