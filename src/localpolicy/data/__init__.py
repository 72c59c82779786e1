"""From a raw log to batches: events, preparation, the store on disk, and batches cut from it."""
