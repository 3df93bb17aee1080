"""What runs by itself: versions of models, the log of a store, refresh, jobs."""
