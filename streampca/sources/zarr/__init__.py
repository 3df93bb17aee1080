"""Zarr arrays as sources: opened, guarded, decoded, compared with what they were."""
