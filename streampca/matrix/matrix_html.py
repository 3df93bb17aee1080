"""How a matrix looks in a notebook."""

from __future__ import annotations

from typing import Any

from streampca.html import card, text
from streampca.matrix.labels import AxisLabels


def matrix_card(matrix: Any) -> str:
    """Shape, values, chunks and names of a matrix. Reads none of its values."""
    n, p = matrix.shape
    chunks = [(matrix.chunk_edges(axis), ("samples", "features")[axis]) for axis in (0, 1)]
    cut = [f"{len(edges) - 1:,} along {name}" for edges, name in chunks if edges is not None]
    kind = f"{matrix.dtype}{', sparse' if matrix.sparse else ''}"
    rows = [
        ("shape", text(f"{n:,} samples x {p:,} features")),
        ("values", text(f"{kind}, {matrix.nbytes / 1e6:,.3g} MB")),
        ("chunks", text(", ".join(cut))),
        ("samples", text(_some(matrix.labels.samples))),
        ("features", text(_some(matrix.labels.features))),
        ("preprocessed", text(" then ".join(map(str, matrix.labels.preprocessing.steps)))),
        ("source", text(matrix.note)),
    ]
    return card(type(matrix).__name__, "nothing is read yet", rows)


def _some(axis: AxisLabels) -> str:
    """The first names of an axis, where it has names."""
    if not axis.named or not len(axis):
        return ""
    return ", ".join(axis.names(range(min(3, len(axis))))) + (", …" if len(axis) > 3 else "")
