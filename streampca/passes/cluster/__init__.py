"""Passes on ``dask.distributed``; cluster.py says what can fail, and what answers it."""
