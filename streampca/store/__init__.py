"""Storage of results: bundles of arrays and JSON, sinks of a pass, and the backends they lie in."""

from streampca.store.anndata import CHUNK_ENTRIES, CompressedGroupSink
from streampca.store.array_files import StoredRows
from streampca.store.backend import (
    STAGED,
    Backend,
    Listed,
    LocalBackend,
    ObjectBackend,
    open_backend,
)
from streampca.store.bundle import is_bundle, read_bundle, remove_bundle, write_bundle
from streampca.store.checked import check_fields, check_shapes, understood
from streampca.store.labelled import LabelledSink, labelled_rows, labelled_vector, read_labelled
from streampca.store.matrix_group import GroupLayout, GroupSink, open_group_sink
from streampca.store.places import occupied
from streampca.store.sinks import ColumnsSink, MemorySink, PanelSink, PartSink, Sink, ZarrSink

__all__ = [
    "CHUNK_ENTRIES",
    "STAGED",
    "Backend",
    "ColumnsSink",
    "CompressedGroupSink",
    "GroupLayout",
    "GroupSink",
    "LabelledSink",
    "Listed",
    "LocalBackend",
    "MemorySink",
    "ObjectBackend",
    "PanelSink",
    "PartSink",
    "Sink",
    "StoredRows",
    "ZarrSink",
    "check_fields",
    "check_shapes",
    "is_bundle",
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
