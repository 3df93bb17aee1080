"""LD pruning of variants, and the windows on each chromosome in which it compares them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.genetics.counts import frequencies
from streampca.genetics.filters import UNPLACED
from streampca.genetics.pruning_scan import ORDERS, LDScan
from streampca.genetics.tables import write_lines
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.columns import as_text, label_array, repeated, textual
from streampca.models.contract.request import whole_number
from streampca.passes import (
    Candidate,
    PassCost,
    PassResult,
    PassSpec,
    Plan,
    Planned,
    Running,
    choose,
    execute,
)
from streampca.sources import as_matrix
from streampca.sources.genotypes.allele_counts import code_is_assumed, with_missing_calls
from streampca.sources.genotypes.variants import refuse_repeated_ids


def default_step(window: int | str) -> int:
    """A tenth of a window in variants, 1 of one in kilobases."""
    length, in_bases = window_length(window)
    return 1 if in_bases else max(1, length // 10)


def window_length(window: Any) -> tuple[int, bool]:
    """(length, whether it is in base pairs) of 50, "50" or "1000kb". Raises InvalidInputError."""
    if isinstance(window, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(kb)?\s*", window, re.IGNORECASE)
        if match is not None and match[2] is not None and float(match[1]) > 0:
            return int(float(match[1]) * 1000 * (1 + 2.0**-44)), True
        window = int(match[1]) if match is not None and match[1].isdigit() else window
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 2:
        raise InvalidInputError(
            f"window={window!r}; expected at least 2 variants, such as 50, or such as '1000kb'"
        )
    return int(window), False


def windows(
    chromosome: Array, position: Array | None, length: int, step: int
) -> tuple[Array, Array]:
    """(starts, stops) of the windows in order, as variant numbers [start, stop).

    chromosome : (p,).  position : (p,) base pairs where the length is in them, else None: a
    window then moves on as far as brings in another variant. A variant alone on its chromosome
    (or further than the length from all others) is in no window, and is kept, as by PLINK.
    """
    first, last = runs(chromosome)
    if split := repeated(as_text(chromosome[first])):
        raise InvalidInputError(
            f"the variants of chromosome {shorten(split, len(split))} do not lie "
            "together; sort them by chromosome and position (plink2 --make-pgen --sort-vars)"
        )
    starts, stops = [], []
    for a, b in zip(first, last):
        if chromosome[a] == UNPLACED:
            continue
        if position is None:
            start = np.arange(a, max(a, b - length + step - 1) + 1, step)
            stop = np.minimum(start + length, b)
        else:
            place = np.asarray(position[a:b], dtype=np.int64)
            if np.any(np.diff(place) < 0):
                raise InvalidInputError(
                    f"the positions on chromosome {chromosome[a]} do not increase; sort the "
                    "variants (plink2 --make-pgen --sort-vars), or give a window in variants"
                )
            stop, start = np.unique(
                np.searchsorted(place, place + length, side="right"), return_index=True
            )
            start, stop = start + a, stop + a
        several = stop - start > 1
        starts.append(start[several])
        stops.append(stop[several])
    nothing = np.empty(0, np.int64)
    return np.concatenate([nothing, *starts]), np.concatenate([nothing, *stops])


def chromosomes(features: AxisLabels) -> Array:
    """(p,) names of the chromosomes; all the same if X has none."""
    if "chromosome" in features.extra:
        return as_text(features.extra["chromosome"])
    return np.full(len(features), "all")


def runs(chromosome: Array) -> tuple[Array, Array]:
    """(first, last + 1) of each run of variants on one chromosome."""
    borders = np.flatnonzero(chromosome[1:] != chromosome[:-1]) + 1
    ends = np.concatenate([[0], borders, [len(chromosome)]]).astype(np.int64)
    return ends[:-1], ends[1:]


# LD pruning while streaming: variants in approximate linkage equilibrium, as PLINK 2 picks them.
#
# ``prune_ld`` gives the variants that ``plink2 --indep-pairwise <window> <step> <r2>`` keeps, in
# one pass over the calls.

PRUNE_IN = "a list of the kept variants"
WINDOW = 500  # variants; PLINK has no default


@dataclass(frozen=True)
class PruningRules:
    """Parameters of :func:`prune_ld`, the step resolved."""

    r2: float
    window: int | str
    step: int
    order: int = 1


@dataclass(frozen=True, repr=False)
class LDPruning:
    """Which variants LD pruning kept. Prints as one line.

    kept : (m,) int64 increasing numbers of the kept features.  ids : (m,) their names.
    n_features : p.  n_constant : removed because all their observed calls are equal.
    n_unplaced : left out because they lie on chromosome 0.
    by_chromosome : chromosome -> (kept, all).
    settings : those of :func:`prune_ld`.  plan, cost : of the pass.  features : labels of all.
    before : plan and cost of the pass for the frequencies of dosages.
    """

    kept: Array
    ids: Array
    n_features: int
    n_constant: int
    n_unplaced: int
    by_chromosome: Mapping[str, tuple[int, int]]
    settings: Mapping[str, Any]
    plan: Plan
    cost: PassCost
    features: AxisLabels
    before: tuple[tuple[Plan, PassCost], ...] = ()

    @property
    def mask(self) -> Array:
        """(p,) True = kept."""
        mask = np.zeros(self.n_features, dtype=bool)
        mask[self.kept] = True
        return mask

    def write(self, path: str | os.PathLike[str], overwrite: bool = True) -> Path:
        """Write the kept ids, one a line, as PLINK's .prune.in; the file appears whole.

        Raises InvalidInputError where something other than a file lies there, or a file that is
        not to be overwritten, and where an id names several variants.
        """
        refuse_repeated_ids(self.features, PRUNE_IN)
        write_lines(path, (f"{name}\n" for name in self.ids.tolist()), overwrite)
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready summary, without the variants themselves."""
        counts = {name: list(pair) for name, pair in self.by_chromosome.items()}
        return {
            "kept": len(self.kept),
            "features": self.n_features,
            "constant": self.n_constant,
            "unplaced": self.n_unplaced,
            "by_chromosome": counts,
            "settings": dict(self.settings),
        }

    def __str__(self) -> str:
        rules = self.settings
        return (
            f"pruned to r2 <= {rules['r2']} in windows of {rules['window']}, step {rules['step']}: "
            f"{len(self.kept)} of {self.n_features} variants kept, {self.n_constant} do not vary"
        )

    def __repr__(self) -> str:
        return f"<LDPruning: {self}>"


def prune_ld(
    X: Any,
    *,
    r2: float = 0.2,
    window: int | str = WINDOW,
    step: int | None = None,
    order: int = 1,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> LDPruning:
    """The variants of X that ``plink2 --indep-pairwise window step r2`` keeps.

    X : (n, p) calls 0, 1, 2 or missing, features = variants in map order; anything that
        :func:`streampca.open` opens. Of dosages, the calls that belong to them; which of two is
        rarer is told by the dosages, in a pass of their own.
        ``labels.features.extra`` may name "chromosome" and "position" (base pairs); without them
        all variants lie on one chromosome.
    r2 : of two variants in one window with a larger squared correlation one is removed: the
        rarer, or the later of two that are equally frequent. Correlations are those of allele
        counts over the samples observed in both. Variants that do not vary are removed.
    window : in variants (500) or in kilobases ("1000kb"); windows never cross chromosomes.
    step : variants by which a window moves; None: a tenth of the window (50), 1 for kilobases.
        PLINK has no default for either; these are the command line's too.
    order : of the comparisons, PLINK 2's ``--indep-order``. 1: PLINK 1.9's, the only one of
        PLINK 2 alpha 3; 2: the default of newer PLINK 2. Both leave no linked pair within a
        window; the sets differ.
    dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.

    All chromosomes are treated as diploid, and all samples count.

    Cost: one pass; n p window / 1e10 seconds or so (3192 x 500,568 with window=50, step=1: 5 s
    and the reading); two bits per call of one window and one block.
    Raises InvalidInputError for settings or calls that do not fit.
    Source: Purcell et al. 2007, Am J Hum Genet 81:559; Chang et al. 2015, GigaScience 4:7.

    Examples
    --------
    >>> calls = np.random.default_rng(0).integers(0, 3, (50, 4)).astype("i1")
    >>> calls[:, 1] = calls[:, 0]  # the same variant twice
    >>> streampca.prune_ld(calls, r2=0.5, window=3, step=1).kept
    array([0, 2, 3])
    """
    rules = PruningRules(r2, window, default_step(window) if step is None else step, order)
    opened = with_missing_calls(as_matrix(X, dim=dim, missing_value=missing_value))
    matrix, running = opened.hard_calls(), Running(memory_limit, scheduler, progress)
    scan = ld_scan(matrix, rules)
    before: list[tuple[Plan, PassCost]] = []
    if matrix is not opened:
        scan.frequencies = frequencies(opened, before, running)
    done = execute(choose_pruning(matrix, scan, memory_limit), running)
    scanned = done.answer["scan"]
    found = _result(scanned, matrix.labels.features, rules, done.plan, done.costs[0])
    return replace(found, before=tuple(before))


def ld_scan(matrix: ChunkedMatrix, rules: PruningRules) -> LDScan:
    """An empty scan of a matrix. Checks everything that can be checked without reading."""
    length, in_bases = check_pruning(rules, matrix)
    features = matrix.labels.features
    position = features.extra.get("position") if in_bases else None
    starts, stops = windows(chromosomes(features), position, length, rules.step)
    return LDScan(
        r2=rules.r2,
        order=rules.order,
        starts=starts,
        stops=stops,
        missing=matrix.missing_value,
        code_assumed=code_is_assumed(matrix),
    )


def check_pruning(rules: PruningRules, matrix: ChunkedMatrix) -> tuple[int, bool]:
    """(window length, whether it is in base pairs). Refuses rules that cannot be satisfied."""
    r2, window, step = rules.r2, rules.window, rules.step
    if isinstance(r2, bool) or not isinstance(r2, (int, float, np.number)) or not 0 <= r2 < 1:
        raise InvalidInputError(f"r2={r2!r}; expected a number from 0 to less than 1, such as 0.2")
    if rules.order not in ORDERS:
        raise InvalidInputError(f"order={rules.order!r}; expected one of {tuple(ORDERS)}")
    length, in_bases = window_length(window)
    whole_number("step", step)
    if in_bases and step != 1:
        raise InvalidInputError(f"step={step} with window={window!r}; expected step=1 there")
    if not in_bases and step > length:
        raise InvalidInputError(
            f"step={step} is larger than window={window}: some pairs of neighbours would never "
            "be compared"
        )
    if matrix.shape[0] < 2:
        raise InvalidInputError(
            "a correlation needs at least 2 samples; X has 1. Samples are rows: X.T?"
        )
    if in_bases and "position" not in matrix.labels.features.extra:
        raise InvalidInputError(
            f"window={window!r} needs the positions of the variants, and X carries none; give a "
            "window in variants, such as window=50, or a source with positions (.bed with .bim)"
        )
    return length, in_bases


def choose_pruning(
    matrix: ChunkedMatrix, scan: LDScan, memory_limit: int | str | None
) -> Planned[PassResult]:
    """The single ordered pass, planned. Raises MemoryLimitError if it does not fit."""
    shape = matrix.shape
    pairs = float(np.sum(np.diff(scan.stops, prepend=0) * (scan.stops - scan.starts)))
    spec = PassSpec(
        "LD scan",
        1,
        scan.projected_nbytes(shape, 1),
        scan.projected_nbytes(shape, 1),
        lambda length: scan.scratch_nbytes(shape, length),
        {"scan": scan},
        kept_nbytes=scan.starts.nbytes + scan.stops.nbytes,
        flops=7.0 / 64 * shape[0] * pairs,
        ordered=True,
    )
    reason = "one ordered pass; calls as bits, r^2 by counting them, exact"
    return choose(matrix, "LD pruning", [Candidate("greedy scan", reason, (spec,))], memory_limit)


def _result(
    scan: LDScan, features: AxisLabels, rules: PruningRules, plan: Plan, cost: PassCost
) -> LDPruning:
    chromosome = chromosomes(features)
    placed = chromosome != UNPLACED
    keep = scan.keep & placed
    kept = np.flatnonzero(keep)
    first, last = runs(chromosome)
    counts = np.searchsorted(kept, last) - np.searchsorted(kept, first)
    rows = zip(chromosome[first].tolist(), counts.tolist(), (last - first).tolist())
    return LDPruning(
        kept=kept,
        ids=_ids(features, kept),
        n_features=len(keep),
        n_constant=int(np.count_nonzero(scan.constant & ~keep & placed)),
        n_unplaced=int(np.count_nonzero(~placed)),
        by_chromosome={name: (m, p) for name, m, p in rows},
        settings=asdict(rules),
        plan=plan,
        cost=cost,
        features=features,
    )


def _ids(features: AxisLabels, kept: Array) -> Array:
    """(m,) names of the kept features."""
    names = features.coords.get(features.dims[0]) if len(features.dims) == 1 else None
    if names is None:
        return label_array(features.names(kept.tolist()))
    return np.asarray(textual(names)[kept])
