"""Zarr arrays as sources: opening, guarded reads, decoding, and detection of changes."""
