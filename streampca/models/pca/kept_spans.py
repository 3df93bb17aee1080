"""Sums stored separately for spans of rows, so that only spans with changed rows are read again.

Sums cannot be downdated exactly, so nothing is subtracted from a total. What changed is folded
anew, span by span, and the total is made again from the spans in their order: the same bits as
folding all of them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.kernels import Array
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.pca.incremental_state import StateRequest
from streampca.passes import parse_nbytes
from streampca.store import understood

MOST = 16  # spans
LEAST_NBYTES = 128 << 20  # decoded rows of a span: with fewer, the fixed cost of a pass dominates
STATE = "state-"

Rows = tuple[int, int]  # first row, and the one after the last
Fit = Callable[[Rows], IncrementalPCA]


@dataclass(frozen=True)
class Span:
    """Consecutive rows and their sums.

    parts : rows of the parts, which were folded separately and merged in this order.
    state : their sum.
    """

    parts: tuple[Rows, ...]
    state: IncrementalPCA

    @property
    def rows(self) -> Rows:
        """From the first row of all parts to the last."""
        return self.parts[0][0], self.parts[-1][1]


def most_spans(estimator: IncrementalPCA, shape: tuple[int, int], allowed: int | str) -> int:
    """The number of spans that fit, for states of this width and so many bytes; at most MOST.

    At most an eighth of a memory limit is used, since all are held during the pass.
    """
    limit = parse_nbytes(estimator.memory_limit)
    nbytes = 0 if allowed in (0, "0") else parse_nbytes(allowed) or 0
    if limit is not None:
        nbytes = min(nbytes, limit // 8)
    state = StateRequest.of(estimator).blank().projected_nbytes(shape, 8)
    return int(min(MOST, nbytes // max(state, 1)))


def with_room_for(estimator: IncrementalPCA, shape: tuple[int, int], states: int) -> IncrementalPCA:
    """An unfitted clone whose memory limit leaves room for so many states of this width."""
    clone = IncrementalPCA(**estimator.get_params())
    if (limit := parse_nbytes(estimator.memory_limit)) is not None:
        state = StateRequest.of(estimator).blank().projected_nbytes(shape, 8)
        clone.memory_limit = limit - states * state
    return clone


def divide(rows: int, step: int, row_nbytes: int, most: int) -> tuple[Rows, ...]:
    """At most so many spans of about equal length, each a multiple of ``step`` rows."""
    chunks = -(-rows // step)
    count = max(1, min(most, chunks, rows * row_nbytes // max(LEAST_NBYTES, 1)))
    edges = [chunks * i // count * step for i in range(count)] + [rows]
    return tuple(pairwise(edges))


def merged(states: Sequence[IncrementalPCA]) -> IncrementalPCA:
    """All states merged in their order; none is changed. Cost: a copy of one state."""
    total = IncrementalPCA.state_from_saved(*states[0].state_to_saved(), "a span")
    for state in states[1:]:
        total.merge(state)
    return total


def merge_neighbours(spans: Sequence[Span], most: int) -> tuple[Span, ...]:
    """At most so many: neighbours with the fewest rows together become one."""
    kept = list(spans)
    while len(kept) > max(most, 1):
        lengths = [b.rows[1] - a.rows[0] for a, b in pairwise(kept)]
        i = int(np.argmin(lengths))
        a, b = kept[i : i + 2]
        kept[i : i + 2] = [Span(a.parts + b.parts, merged([a.state, b.state]))]
    return tuple(kept)


def changed_spans(spans: Sequence[Span], changed: Iterable[Rows]) -> tuple[int, ...]:
    """Numbers of the spans that hold any of the changed rows."""
    ranges = list(changed)
    return tuple(
        i
        for i, span in enumerate(spans)
        if any(a < span.rows[1] and b > span.rows[0] for a, b in ranges)
    )


def refolded(span: Span, fit: Fit) -> Span:
    """The span folded from its current rows, and merged in the same parts as before."""
    return Span(span.parts, merged([fit(part) for part in span.parts]))


def to_saved(spans: Sequence[Span]) -> tuple[dict[str, Array], dict[str, Any]]:
    """(arrays, JSON-ready document), for a bundle: every field of all states, concatenated."""
    saved = [span.state.state_to_saved() for span in spans]
    arrays: dict[str, Array] = {}
    shapes: dict[str, list[Any]] = {}
    for name in sorted({n for one, _ in saved for n in one if n.startswith(STATE)}):
        values = [one.get(name) for one, _ in saved]
        shapes[name] = [None if value is None else list(value.shape) for value in values]
        arrays[name] = np.concatenate([value.ravel() for value in values if value is not None])
    about = [{"eps": one["eps"], "work_dtype": one["work_dtype"]} for _, one in saved]
    parts = [[list(part) for part in span.parts] for span in spans]
    return arrays, {"kind": "kept spans", "parts": parts, "shapes": shapes, "about": about}


def from_saved(
    arrays: Mapping[str, Array], document: Mapping[str, Any], total: IncrementalPCA
) -> tuple[Span, ...]:
    """The inverse.  total : the sum of all spans, for its settings and feature names.

    Raises SourceError where it is something else.
    """
    if document.get("kind") != "kept spans":
        raise SourceError("not kept spans")
    with understood("the kept spans"):
        return _spans_of(arrays, document, total)


def _spans_of(
    arrays: Mapping[str, Array], document: Mapping[str, Any], total: IncrementalPCA
) -> tuple[Span, ...]:
    columns, state_document = total.state_to_saved()
    labels = {name: column for name, column in columns.items() if not name.startswith(STATE)}
    at = dict.fromkeys(document["shapes"], 0)
    spans = []
    for i, (parts, about) in enumerate(zip(document["parts"], document["about"], strict=True)):
        state = dict(labels)
        for name, shapes in document["shapes"].items():
            if shapes[i] is not None:
                end = at[name] + int(np.prod(shapes[i], dtype=np.int64))
                state[name] = arrays[name][at[name] : end].reshape(shapes[i])
                at[name] = end
        model = IncrementalPCA.state_from_saved(state, {**state_document, **about}, f"span {i}")
        spans.append(Span(tuple((int(a), int(b)) for a, b in parts), model))
    return tuple(spans)
