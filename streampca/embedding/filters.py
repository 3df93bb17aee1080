"""Which features enter an embedding: filters that one pass decides, and LD pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.genetics.ld_pruning import prune_ld
from streampca.kernels import Array, ColumnStats
from streampca.matrix import ChunkedMatrix, select
from streampca.models.rows.line_sums import column_stats
from streampca.passes import Running
from streampca.sources.genotypes.allele_counts import refuse_other_ploidy

FORMS = (
    "variance:2000 or dispersion:2000 (features with the largest), missing:0.05 (at most that "
    "share of missing cells), maf:0.01 (at least that minor allele frequency), "
    "ld:0.2 (at most that r^2)"
)


@dataclass(frozen=True)
class Filter:
    """One filter.  name : its kind.  value : a number of features, or a limit."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name}:{self.value:g}"


def parse_filters(wanted: str | Sequence[str] | None) -> tuple[Filter, ...]:
    """``"variance:2000"``, or several, as filters in the order in which they are applied.

    Limits come first, then the largest of what is left, LD pruning last.
    Raises InvalidInputError for unknown names and numbers that cannot be.
    """
    texts = [wanted] if isinstance(wanted, str) else list(wanted or [])
    found = [_parsed(one.strip()) for text in texts for one in str(text).split(",")]
    names = [one.name for one in found]
    if len({*names}) < len(names) or {*LARGEST} <= {*names}:
        raise InvalidInputError(
            f"filter={wanted!r}; expected each filter once, and one of {' and '.join(LARGEST)}"
        )
    return tuple(sorted(found, key=lambda one: ORDER.index(one.name)))


def _parsed(text: str) -> Filter:
    name, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    counts = name in LARGEST
    if name not in ORDER or not (
        value >= 1 and value.is_integer() if counts else 0.0 <= value <= 1.0
    ):
        raise InvalidInputError(f"filter={text!r}; expected {FORMS}")
    return Filter(name, value)


@dataclass(frozen=True)
class Filtered:
    """What filters left.

    matrix : of the features that are left.  steps : (filter, how many it left).
    n_features : before them.  passes : over the data.
    """

    matrix: ChunkedMatrix
    n_features: int
    steps: tuple[tuple[str, int], ...] = ()
    passes: int = 0

    def __str__(self) -> str:
        left = ", ".join(f"{name} leaves {count:,}" for name, count in self.steps)
        return f"{self.n_features:,} features" + (f"; {left}" if left else "")


def filtered(
    matrix: ChunkedMatrix, filters: Sequence[Filter], ploidy: int, **running: Any
) -> Filtered:
    """Apply filters: one pass for all but LD pruning, which takes one more.

    running : memory_limit, scheduler, progress.  Raises InvalidInputError where nothing is left.
    """
    p, steps, chosen = matrix.shape[1], [], matrix
    if any(one.name == "maf" for one in filters):
        refuse_other_ploidy(matrix, ploidy)
    by_columns = [one for one in filters if one.name != "ld"]
    if by_columns:
        stats = column_stats(matrix, "filter", Running(**running))
        kept = np.ones(p, bool)
        for column in by_columns:
            kept = _left(column, stats, kept, ploidy)
            steps.append((str(column), int(np.count_nonzero(kept))))
        _refuse_nothing(steps, p)
        reason = ", ".join(map(str, by_columns))
        chosen = select(matrix, features=np.flatnonzero(kept), chosen_by=reason)
    for one in (one for one in filters if one.name == "ld"):
        pruning = prune_ld(chosen, r2=one.value, **running)
        steps.append((str(one), int(np.count_nonzero(pruning.mask))))
        _refuse_nothing(steps, p)
        chosen = select(chosen, features=pruning.mask, chosen_by=str(one))
    return Filtered(chosen, p, tuple(steps), bool(by_columns) + (len(filters) > len(by_columns)))


def at_most(filters: Sequence[Filter], n_features: int) -> int:
    """The most features that filters can leave."""
    return min([n_features, *(int(one.value) for one in filters if one.name in LARGEST)])


def _refuse_nothing(steps: Sequence[tuple[str, int]], p: int) -> None:
    name, left = steps[-1]
    if not left:
        raise InvalidInputError(f"filter {name} leaves none of {p} features; choose a milder one")


def _left(one: Filter, stats: ColumnStats, kept: Array, ploidy: int) -> Array:
    if one.name in LIMITS:
        return np.asarray(kept & LIMITS[one.name](stats, one.value, ploidy))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = LARGEST[one.name](stats)
    score = np.where(kept & np.isfinite(score), score, -np.inf)
    order = np.argsort(-score, kind="stable")[: int(one.value)]
    mask = np.zeros(len(kept), bool)
    mask[order[score[order] > -np.inf]] = True
    return mask


def _variance(stats: ColumnStats) -> Array:
    return np.asarray(stats.m2 / np.maximum(stats.weight - 1, 1))


def _frequent(stats: ColumnStats, limit: float, ploidy: int) -> Array:
    seen = stats.count > 0
    outside = seen & ((stats.minimum < 0) | (stats.maximum > ploidy))
    if outside.any():
        raise InvalidInputError(
            f"filter='maf:{limit:g}' needs allele counts from 0 to {ploidy}; "
            f"{int(outside.sum())} features hold others. Name their missing code: missing_value=-9"
        )
    share = stats.mean / ploidy
    return np.asarray(seen & (np.minimum(share, 1.0 - share) >= limit) & (stats.m2 > 0))


def _observed(stats: ColumnStats, limit: float, ploidy: int) -> Array:
    return np.asarray(stats.missing <= limit * (stats.count + stats.missing))


LIMITS: dict[str, Callable[[ColumnStats, float, int], Array]] = {
    "missing": _observed,
    "maf": _frequent,
}
LARGEST: dict[str, Callable[[ColumnStats], Array]] = {
    "variance": _variance,
    "dispersion": lambda stats: np.asarray(_variance(stats) / np.abs(stats.mean)),
}
ORDER = (*LIMITS, *LARGEST, "ld")
