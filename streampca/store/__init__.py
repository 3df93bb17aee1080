"""Where results rest: bundles of arrays and JSON, and sinks that a pass writes to."""

from streampca.store.bundle import is_bundle, read_bundle, write_bundle
from streampca.store.compressed_group import CHUNK_ENTRIES, CompressedGroupSink
from streampca.store.labelled_sink import LabelledSink, labelled_columns, read_labelled
from streampca.store.matrix_group import GroupLayout, GroupSink, open_group_sink
from streampca.store.sinks import MemorySink, Sink, ZarrSink

__all__ = [
    "CHUNK_ENTRIES",
    "CompressedGroupSink",
    "GroupLayout",
    "GroupSink",
    "LabelledSink",
    "MemorySink",
    "Sink",
    "ZarrSink",
    "is_bundle",
    "labelled_columns",
    "open_group_sink",
    "read_bundle",
    "read_labelled",
    "write_bundle",
]
