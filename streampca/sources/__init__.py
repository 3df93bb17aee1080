"""Anything as a ChunkedMatrix. The only room that knows file formats and dimension names."""

from streampca.sources.opening import as_matrix, counted, open
from streampca.sources.zarr.appending import append, commit_rows

__all__ = ["append", "as_matrix", "commit_rows", "counted", "open"]
