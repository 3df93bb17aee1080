"""LD pruning while streaming: variants in approximate linkage equilibrium, as PLINK 2 picks them.

``prune_ld`` gives the variants that ``plink2 --indep-pairwise <window> <step> <r2>`` keeps, in
one pass over the calls. The scan is greedy and ordered, so it is no merging accumulator: one
span folds all blocks, and what it has decided travels back as the accumulator's state.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streampca.accumulators import Accumulator
from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.text import as_text, repeated
from streampca.passes import (
    Candidate,
    Execution,
    PassCost,
    PassSpec,
    Plan,
    make_plan,
    run,
)
from streampca.sources import as_matrix
from streampca.store.tables import write_lines

ORDERS = {1: False, 2: True}  # PLINK 2's --indep-order -> whether windows are walked backward
WINDOW = 500  # variants; PLINK has no default
UNPLACED = "0"  # the chromosome of variants without a position: PLINK leaves them out


@dataclass(frozen=True, repr=False)
class LDPruning:
    """Which variants LD pruning kept. Prints as one line.

    kept : (m,) int64 increasing numbers of the kept features.  ids : (m,) their names.
    n_features : p.  n_constant : removed because all their observed calls are equal.
    n_unplaced : left out because they lie on chromosome 0.
    by_chromosome : chromosome -> (kept, all).
    settings : those of :func:`prune_ld`.  plan, cost : of the pass.
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

    @property
    def mask(self) -> Array:
        """(p,) True = kept."""
        mask = np.zeros(self.n_features, dtype=bool)
        mask[self.kept] = True
        return mask

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the kept ids, one a line, as PLINK's .prune.in; the file appears whole."""
        write_lines(path, (f"{name}\n" for name in self.ids.tolist()))
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

    def __repr__(self) -> str:
        settings = json.dumps(dict(self.settings), sort_keys=True)
        return (
            f"<LDPruning: {len(self.kept)} of {self.n_features} variants kept, "
            f"{self.n_constant} of the others constant, {settings}>"
        )


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
        :func:`streampca.open` opens. ``labels.features.extra`` may name "chromosome" and
        "position" (base pairs); without them all variants lie on one chromosome.
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
    """
    step = default_step(window) if step is None else step
    settings = {"r2": r2, "window": window, "step": step, "order": order}
    matrix = as_matrix(X, dim=dim, missing_value=missing_value)
    scan = ld_scan(matrix, settings)
    plan = plan_pruning(matrix, scan, memory_limit)
    plan.check_machine()
    execution = Execution.of(plan, scheduler, progress)
    done = run(plan.passes[0], matrix, accumulators={"scan": scan}, execution=execution)
    return _result(done["scan"], matrix.labels.features, settings, plan, done.cost)


def ld_scan(matrix: ChunkedMatrix, settings: Mapping[str, Any]) -> LDScan:
    """The scan of a matrix, empty: all that can be refused is refused here, without reading."""
    length, in_bases = check_pruning(settings, matrix)
    features = matrix.labels.features
    position = features.extra.get("position") if in_bases else None
    starts, stops = windows(_chromosomes(features), position, length, settings["step"])
    return LDScan(
        r2=settings["r2"],
        order=settings["order"],
        starts=starts,
        stops=stops,
        missing=matrix.missing_value,
    )


def check_pruning(settings: Mapping[str, Any], matrix: ChunkedMatrix) -> tuple[int, bool]:
    """(window length, whether it is in base pairs). Refuses settings that cannot be met."""
    r2, window, step = settings["r2"], settings["window"], settings["step"]
    if isinstance(r2, bool) or not isinstance(r2, (int, float, np.number)) or not 0 <= r2 < 1:
        raise InvalidInputError(f"r2={r2!r}; expected a number from 0 to less than 1, such as 0.2")
    if settings["order"] not in ORDERS:
        raise InvalidInputError(f"order={settings['order']!r}; expected one of {tuple(ORDERS)}")
    length, in_bases = _window_length(window)
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 1:
        raise InvalidInputError(f"step={step!r}; expected a number of variants, 1 or more")
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


def default_step(window: int | str) -> int:
    """A tenth of a window in variants, 1 of one in kilobases."""
    length, in_bases = _window_length(window)
    return 1 if in_bases else max(1, length // 10)


def _window_length(window: Any) -> tuple[int, bool]:
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


def _chromosomes(features: AxisLabels) -> Array:
    """(p,) names of the chromosomes; one and the same where X carries none."""
    if "chromosome" in features.extra:
        return as_text(features.extra["chromosome"])
    return np.full(len(features), "all")


def windows(
    chromosome: Array, position: Array | None, length: int, step: int
) -> tuple[Array, Array]:
    """(starts, stops) of the windows in order, as variant numbers [start, stop).

    chromosome : (p,).  position : (p,) base pairs where the length is in them, else None: a
    window then moves on as far as brings in another variant. A variant alone on its chromosome
    (or further than the length from all others) is in no window, and is kept, as by PLINK.
    """
    first, last = _runs(chromosome)
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


def _runs(chromosome: Array) -> tuple[Array, Array]:
    """(first, last + 1) of each run of variants on one chromosome."""
    borders = np.flatnonzero(chromosome[1:] != chromosome[:-1]) + 1
    ends = np.concatenate([[0], borders, [len(chromosome)]]).astype(np.int64)
    return ends[:-1], ends[1:]


class LDScan(Accumulator):
    """The greedy walk over ordered blocks of variants. It cannot be merged with another.

    State: decisions on all variants so far, and the last window's variants as bits.
    """

    axis = 1
    settings = ("r2", "order", "starts", "stops", "missing")
    fields = ("keep", "constant", "bits", "counts", "survivors", "entered", "seen")

    def __init__(
        self, *, r2: float, order: int, starts: Array, stops: Array, missing: float | None
    ) -> None:
        self.r2, self.order = r2, order
        self.starts, self.stops = np.array(starts), np.array(stops)  # writable on workers too
        self.missing = missing
        self.keep = np.zeros(0, bool)  # (seen,) whether the variant is kept, as far as is known
        self.constant = np.zeros(0, bool)  # (seen,) whether its observed calls are all equal
        self.bits: Array | None = None  # (w, 2, words) of the last w variants
        self.counts: Array | None = None  # (w, 3) their sums
        self.survivors = np.zeros(0, np.int64)  # numbers of the last window's kept variants
        self.entered = 0  # the first variant that no window has had yet
        self.seen = 0  # variants so far

    def update(self, block: Any) -> None:
        """Pack the block, and walk every window that is now whole."""
        self._check(block)
        from streampca.kernels.pruning import count_calls, pack_calls, prune_windows

        if block.start != self.seen:
            raise InvalidInputError(
                f"{type(self).__name__} needs blocks in order: it has seen {self.seen} variants, "
                f"now came {block.start} to {block.stop - 1}"
            )
        values, code = _calls(block)
        bits, strange = pack_calls(values, code)
        if strange:
            raise _strange(block, values, code)
        counts = np.empty((len(bits), 3), np.int64)
        count_calls(bits, counts)
        self.seen = block.stop
        self.keep = np.concatenate([self.keep, np.ones(len(bits), bool)])
        still = counts[:, 2] * counts[:, 0] <= counts[:, 1] ** 2
        self.constant = np.concatenate([self.constant, still])
        if self.bits is not None and self.counts is not None:
            bits = np.concatenate([self.bits, bits])
            counts = np.concatenate([self.counts, counts])
        first = self.seen - len(bits)
        due, whole = np.searchsorted(self.stops, [self.entered, self.seen], side="right")
        observed = np.maximum(counts[:, 0], 1)
        share = (counts[:, 1] + counts[:, 0]) / (2.0 * observed)
        rows, self.entered = prune_windows(
            self.starts[due:whole], self.stops[due:whole], first, self.entered,
            self.survivors - first, bits, counts, np.maximum(share, 1.0 - share),
            block.shape[0], self.r2 * (1.0 + 2.0**-44), ORDERS[self.order], self.keep[first:],
        )  # fmt: skip
        wanted = self.starts[whole] if whole < len(self.starts) else self.seen
        begin = int(min(max(wanted, first), self.seen))
        self.bits, self.counts = bits[begin - first :].copy(), counts[begin - first :].copy()
        self.survivors = rows[rows >= begin - first] + first

    def merge(self, other: LDScan) -> None:
        """Take the place of ``other``; only an empty scan can, for the walk has one order."""
        if other.seen and self.seen:
            raise InvalidInputError("an LD scan is one walk in order; two cannot be merged")
        if other.seen:
            for name in self.fields:
                value = getattr(other, name)
                setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        """The decisions, and the bits of a window."""
        longest = int(np.max(self.stops - self.starts, initial=0))
        return 2 * shape[1] + longest * (_bits_nbytes(shape[0]) + 32)

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        """Bits of the block and of the window joined to it, and a copy of odd calls."""
        longest = int(np.max(self.stops - self.starts, initial=0))
        bits = (2 * block_length + longest) * (_bits_nbytes(shape[0]) + 64)
        return bits + block_length * shape[0] + 2 * shape[1]


def _bits_nbytes(n: int) -> int:
    return 16 * -(-n // 64)


def _calls(block: Any) -> tuple[Array, int]:
    """(calls (n, m) as integers, the code of a missing one)."""
    values = block.values if isinstance(block.values, np.ndarray) else block.dense()
    missing = block.missing_value
    if values.dtype in (np.int8, np.uint8) and block.hidden is None:
        known = missing is not None and np.isfinite(missing) and float(missing).is_integer()
        return values, int(missing) if known else 1 << 15
    hole = block.mask
    calls = np.full(values.shape, 127, np.int8, order="C" if values.flags.c_contiguous else "F")
    for call in (0, 1, 2):
        calls[values == call] = call
    if hole is not None:
        calls[hole] = -1
    return calls, -1


def _strange(block: Any, values: Array, code: int) -> InvalidInputError:
    """The error for cells that are no calls."""
    bad = (values != code) & ((values < 0) | (values > 2))
    columns = np.flatnonzero(bad.any(axis=0))
    found = np.unique(block.dense()[bad]).tolist()
    advice = ""
    if block.missing_value is None and len(found) == 1:
        advice = f" If {found[0]:g} means missing, say missing_value={found[0]:g}."
    words = shorten([f"{value:g}" for value in found])
    return InvalidInputError(
        f"{block.describe()}, {block.name_columns(columns)} hold {words}; LD pruning needs calls "
        f"0, 1 or 2 (copies of an allele) or missing.{advice}"
    )


def plan_pruning(
    matrix: ChunkedMatrix, scan: LDScan, memory_limit: int | str | None = None
) -> Plan:
    """The plan of the one ordered pass. Raises MemoryLimitError where it does not fit."""
    shape = matrix.shape
    pairs = float(np.sum(np.diff(scan.stops, prepend=0) * (scan.stops - scan.starts)))
    spec = PassSpec(
        "LD scan",
        1,
        scan.projected_nbytes(shape, 1),
        scan.projected_nbytes(shape, 1),
        lambda length: scan.scratch_nbytes(shape, length),
        kept_nbytes=scan.starts.nbytes + scan.stops.nbytes,
        flops=7.0 / 64 * shape[0] * pairs,
        ordered=True,
    )
    reason = "one ordered pass; calls as bits, r^2 by counting them, exact"
    return make_plan(
        matrix, "LD pruning", [Candidate("greedy scan", reason, (spec,))], memory_limit
    )


def _result(
    scan: LDScan, features: AxisLabels, settings: dict[str, Any], plan: Plan, cost: PassCost
) -> LDPruning:
    chromosome = _chromosomes(features)
    placed = chromosome != UNPLACED
    keep = scan.keep & placed
    kept = np.flatnonzero(keep)
    first, last = _runs(chromosome)
    counts = np.searchsorted(kept, last) - np.searchsorted(kept, first)
    rows = zip(chromosome[first].tolist(), counts.tolist(), (last - first).tolist())
    return LDPruning(
        kept=kept,
        ids=_ids(features, kept),
        n_features=len(keep),
        n_constant=int(np.count_nonzero(scan.constant & ~keep & placed)),
        n_unplaced=int(np.count_nonzero(~placed)),
        by_chromosome={name: (m, p) for name, m, p in rows},
        settings=settings,
        plan=plan,
        cost=cost,
    )


def _ids(features: AxisLabels, kept: Array) -> Array:
    """(m,) names of the kept features."""
    names = features.coords.get(features.dims[0]) if len(features.dims) == 1 else None
    if names is None:
        return np.asarray(features.names(kept.tolist()), str)
    return as_text(names)[kept]
