"""Where results rest: bundles of arrays and JSON, versions of them, and sinks of a pass."""

from streampca.store.backend import Backend, Listed
from streampca.store.bundle import is_bundle, read_bundle, remove_bundle, write_bundle
from streampca.store.compressed_group import CHUNK_ENTRIES, CompressedGroupSink
from streampca.store.history import Entry, History
from streampca.store.labelled_sink import (
    LabelledSink,
    labelled_rows,
    labelled_vector,
    read_labelled,
)
from streampca.store.local import LocalBackend
from streampca.store.matrix_group import GroupLayout, GroupSink, open_group_sink
from streampca.store.objects import ObjectBackend, open_backend
from streampca.store.places import occupied
from streampca.store.saved_form import check_fields, check_shapes, understood
from streampca.store.sinks import ColumnsSink, MemorySink, Sink, ZarrSink
from streampca.store.stored_rows import StoredRows
from streampca.store.stored_version import Part, StoredVersion
from streampca.store.versions import VersionStore, is_model

__all__ = [
    "CHUNK_ENTRIES",
    "Backend",
    "ColumnsSink",
    "CompressedGroupSink",
    "Entry",
    "GroupLayout",
    "GroupSink",
    "History",
    "LabelledSink",
    "Listed",
    "LocalBackend",
    "MemorySink",
    "ObjectBackend",
    "Part",
    "Sink",
    "StoredRows",
    "StoredVersion",
    "VersionStore",
    "ZarrSink",
    "check_fields",
    "check_shapes",
    "is_bundle",
    "is_model",
    "labelled_rows",
    "labelled_vector",
    "occupied",
    "open_backend",
    "open_group_sink",
    "read_bundle",
    "read_labelled",
    "remove_bundle",
    "understood",
    "write_bundle",
]
