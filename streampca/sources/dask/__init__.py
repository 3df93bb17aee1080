"""Dask arrays and frames as sources: strips of their graphs, each computed once."""
