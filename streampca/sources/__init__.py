"""Anything as a ChunkedMatrix. The only room that knows file formats and dimension names."""

from streampca.sources.appending import append, commit_rows
from streampca.sources.counted import counted
from streampca.sources.opening import as_matrix, open

__all__ = ["append", "as_matrix", "commit_rows", "counted", "open"]
