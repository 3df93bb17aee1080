"""Versions of models, the log that says which is served, and ``streampca.load``."""
