"""Anything as a ChunkedMatrix. The only room that knows file formats and dimension names."""

from streampca.sources.counted import counted
from streampca.sources.opening import as_matrix, open

__all__ = ["as_matrix", "counted", "open"]
