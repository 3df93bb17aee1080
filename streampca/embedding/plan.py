"""What an embedding will do and take, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streampca.embedding.layouts import Layout
from streampca.embedding.quality import judging_nbytes
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.request import whole_number
from streampca.passes import Plan, size
from streampca.passes.memory import INTERPRETER_NBYTES, MiB, as_limit

LANDMARKS = 100_000  # laid out at once, if memory allows it
FEWEST = 1_000  # landmarks that are worth a picture of more rows
PLACED, PLACED_NBYTES = 20_000, 128 * MiB  # rows that are placed at a time, at most


@dataclass(frozen=True)
class EmbeddingPlan:
    """What an embedding will do. Prints as text.

    shape : of the source.  filters : in the order in which they are applied.  features : at most,
        after them.
    fit : the plan of the components of so many features.
    layout : the method and its settings.  landmarks : rows that are laid out; the others are
        placed among them, so many ``at_once``.
    memory : bytes by phase and term.  memory_limit : bytes, if there is one.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> from streampca.embedding import plan_embedding
    >>> plan = plan_embedding(np.ones((60, 8)), n_components=4, method=PCA(2))
    >>> print(str(plan).splitlines()[0])
    source    60 x 8
    >>> plan.peak_nbytes == sum(plan.memory["layout"].values())
    True
    """

    shape: tuple[int, int]
    filters: tuple[str, ...]
    features: int
    fit: Plan
    n_components: int
    layout: str
    landmarks: int
    at_once: int = PLACED
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    memory_limit: int | None = None

    @property
    def peak_nbytes(self) -> int:
        """The process at the largest phase."""
        return max(sum(terms.values()) for terms in self.memory.values())

    def __str__(self) -> str:
        n, p = self.shape
        filters_used = ", ".join(self.filters) or "none"
        rest = f"; {n - self.landmarks:,} rows are placed" if self.landmarks < n else ""
        lines = [
            f"source    {n:,} x {p:,}",
            f"filter    {filters_used}; at most {self.features:,} features",
            f"fit       {self.fit.method}, {self.fit.solver}, at most {self.fit.n_passes} passes",
            f"layout    {self.layout} of {self.landmarks:,} rows{rest}",
        ]
        for phase, terms in self.memory.items():
            parts = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in terms.items() if nbytes)
            lines.append(f"memory    {phase}: {size(sum(terms.values()))} ({parts})")
        limit = f" of {size(self.memory_limit)}" if self.memory_limit else ""
        return "\n".join([*lines, f"peak      {size(self.peak_nbytes)}{limit}"])


def kept_terms(matrix: ChunkedMatrix, k: int, layout: Layout) -> dict[str, int]:
    """Bytes that stay while rows are laid out: those of the process, and the components' scores."""
    n = matrix.shape[0]
    labels = matrix.labels.samples.nbytes + matrix.labels.features.nbytes
    return {
        "process": INTERPRETER_NBYTES + labels + matrix.resident_nbytes,
        "layout library": layout.library.loaded_nbytes,
        "its work": layout.library.working_nbytes,
        "X in memory": matrix.given_nbytes,
        "scores": 12 * n * k,  # as the fit gives them, and as float32
        "picture": 8 * n,
    }


def landmarks_wanted(
    wanted: int | None, kept: Mapping[str, int], n: int, row: int, needed: int, limit: int | None
) -> int:
    """How many rows are laid out.

    wanted : by the caller; None takes all up to LANDMARKS, or what the limit allows.
    row : bytes of a row that is laid out.  needed : rows that the layout needs.
    Raises InvalidInputError, MemoryLimitError that names the smallest limit that would do.
    """
    if wanted is not None:
        whole_number("landmarks", wanted, 2, beside="None or ")
    most = min(n, LANDMARKS) if wanted is None else min(n, int(wanted))
    if most < needed:
        raise InvalidInputError(
            f"{most} rows are too few: the layout needs {needed}. Give fewer n_neighbors or a "
            "smaller perplexity"
        )
    if limit is None:
        return most
    beside = sum(kept.values()) + beside_nbytes(kept, n)
    least = most if wanted is not None else min(most, max(FEWEST, needed))
    fit = (limit - beside) // row
    if fit < least:
        smallest = beside + least * row
        raise MemoryLimitError(
            f"memory_limit={size(limit)} is too small for the layout of {least:,} rows. The "
            f"smallest limit that would do is memory_limit={as_limit(smallest, up=True)!r}"
            + ("" if wanted is None else ", or give fewer landmarks"),
            smallest,
        )
    return int(min(most, fit))


def placed_at_once(row: int) -> int:
    """How many rows are placed at a time.  row : bytes for each."""
    return max(1, min(PLACED, PLACED_NBYTES // row))


def beside_nbytes(kept: Mapping[str, int], n: int) -> int:
    """Bytes of what follows the layout: other rows placed, or neighbours compared."""
    k = kept["scores"] // (12 * n)
    return max(PLACED_NBYTES, judging_nbytes(n, k))
