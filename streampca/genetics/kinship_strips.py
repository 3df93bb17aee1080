"""Kinship where counts of all pairs do not fit into memory: by strips of samples, a pass for each.

A strip is some samples, each with all samples before it. Its pass reads the samples up to its last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import SourceError
from streampca.genetics.filters import VariantFilter
from streampca.genetics.id_lists import Names
from streampca.genetics.kinship import PAIRS, refuse_many, whole_kinship
from streampca.genetics.kinship_counts import KinshipCounts
from streampca.genetics.kinship_result import (
    DEGREES,
    SECOND,
    Kinship,
    SamplePairs,
    heading,
    kinship_threshold,
    lines_of_pairs,
    names_in_tables,
    pairs_of_counts,
    without_relatives,
)
from streampca.genetics.pair_passes import AUTOSOMES, PairSettings, none_left, sum_over_pairs
from streampca.kernels import Array, each
from streampca.matrix import AxisLabels, ChunkedMatrix, Standardize, select
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Running,
    Steps,
    choose,
    parse_nbytes,
    pass_spec,
)
from streampca.passes.candidates import DEFAULT_BUDGET
from streampca.store import is_bundle, read_bundle, remove_bundle, write_bundle
from streampca.store.bundle import whole_file

SHARES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # 1 / of n^2 pairs
THIRD = DEGREES["third"]
ARRAYS = [one.name for one in fields(SamplePairs) if one.name != "samples"]
PAIR_NBYTES = 40  # of the counts of a pair in a strip, folded and in one lane
TRIED = 8  # shares, from the first that may fit
PAIR_VARIANTS = 1e11  # that a core counts in a second


class StripCounts(KinshipCounts):
    """Counts of variants for the samples in [first, last), each with all before it.

    Blocks may hold more samples: all of them decide which variants count.
    Arrays of a pair are (samples of the strip, all samples), of which those before are valid.
    """

    settings = ("wanted", "part", "first", "last")
    fields = ("shared", "unlike", "lost_het", "lost_both", "het_lost", "het", "lost", "n_variants")

    def __init__(
        self,
        *,
        wanted: Standardize,
        part: str | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> None:
        super().__init__(wanted=wanted, part=part)
        self.first, self.last = first, last
        self.unlike: Any = None  # opposite homozygotes
        self.het_lost: Any = None  # (all, strip) missing in the one before, heterozygous here

    def _begin(self, n: int) -> None:
        shape = (n - self.first, n)
        self.shared, self.unlike = np.zeros((2, *shape), np.int32)
        self.het, self.lost = np.zeros((2, n), int)

    def _count(self, calls: Array) -> None:
        from streampca.genetics import kinship_kernels as kernels

        (_, n), first = calls.shape, self.first
        planes, _ = kernels.sample_planes(calls.T, -1)
        kernels.count_set(planes[kernels.HET], self.het)
        lost = np.zeros_like(self.lost)
        kernels.count_set(planes[kernels.LOST], lost)
        self.lost += lost
        rows = [(i, min(i + kernels.ROWS, n)) for i in range(first, n, kernels.ROWS)][::-1]
        into = (self.shared, self.unlike)
        each(lambda part: kernels.count_pairs(planes, *part, first, *into), rows)
        if not lost.any():
            return
        if self.lost_het is None:
            self.lost_het, self.lost_both = np.zeros((2, n - first, n), np.int32)
            self.het_lost = np.zeros((n, n - first), np.int32)
        missing, code = planes[kernels.LOST], np.int8(-1)
        own, strip = missing[first:], np.ascontiguousarray(calls[:, first:])
        both = (self.lost_het, self.lost_both)
        here = [(i - first, j - first) for i, j in rows]
        each(lambda part: kernels.count_lost(calls, code, own, *part, *both), here)
        every = [(i, min(i + kernels.ROWS, n)) for i in range(0, n, kernels.ROWS)]
        each(lambda part: kernels.count_lost_het(strip, missing, *part, self.het_lost), every)

    def projected_nbytes(self, shape: tuple[int, int], itemsize: int) -> int:
        n = self.last or shape[0]
        return 5 * (n - self.first) * n * 4 + 2 * n * 8

    def scratch_nbytes(self, shape: tuple[int, int], block_length: int) -> int:
        return super().scratch_nbytes(shape, block_length) * 2  # the calls of the strip

    def pairs_of(self, i: int, samples: AxisLabels) -> SamplePairs:
        """The pairs of sample i, of the strip, and each sample before it."""
        k = i - self.first
        lost = None
        if self.lost_het is not None:
            lost = self.het_lost[:i, k], self.lost_het[k, :i], self.lost_both[k, :i]
        shared = self.shared[k, :i], self.unlike[k, :i]
        return pairs_of_counts(i, *shared, self.het, self.lost, lost, self.n_variants, samples)


@dataclass(frozen=True, repr=False, kw_only=True)
class Relatives:
    """The related pairs of all samples, without the counts of the others.

    pairs : those whose kinship is at least ``least``.  n_variants : that counted.
    samples : labels.  settings, provenance, plan : as :class:`Kinship`.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> calls = np.random.default_rng(0).integers(0, 3, size=(4, 500)).astype("int8")
    >>> calls[3] = calls[0]  # a duplicate
    >>> found = streampca.relatives(calls)
    >>> found.related("first").second.tolist(), found.unrelated().tolist()
    ([0], [True, True, True, False])
    """

    pairs: SamplePairs
    least: float
    n_variants: int
    samples: AxisLabels
    settings: Any
    provenance: Any
    plan: Any

    def related(self, threshold: float | str = "third") -> SamplePairs:
        """The pairs whose kinship is at least this, which is ``least`` or more."""
        least = kinship_threshold(threshold, "threshold", smallest=self.least)
        return self.pairs.where(self.pairs.kinship >= least)

    def unrelated(self, cutoff: float | str = SECOND) -> Array:
        """(n,) True, as :meth:`Kinship.unrelated`."""
        least = kinship_threshold(cutoff, "cutoff", smallest=max(self.least, 0.0))
        close = self.pairs.where(self.pairs.kinship > least)
        return without_relatives(close.first, close.second, len(self.samples))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready summary, as that of :class:`Kinship`."""
        degree = self.related(max(self.least, THIRD)).degree
        pairs = {name: int(np.count_nonzero(degree == name)) for name in DEGREES}
        return {"samples": len(self.samples), "variants": self.n_variants, "pairs": pairs}

    def __str__(self) -> str:
        pairs = ", ".join(f"{count} {name}" for name, count in self.to_dict()["pairs"].items())
        n = len(self.samples)
        return f"{n} samples by {self.n_variants} variants; pairs by degree: {pairs}"

    def __repr__(self) -> str:
        return f"<Relatives: {len(self.pairs)} pairs of {len(self.samples)} samples>"


def relatives(
    X: Any,
    table: str | os.PathLike[str] | None = None,
    *,
    least: float | str = "third",
    listed: float | str | None = "third",
    overwrite: bool = True,
    maf: float = 0.0,
    max_missing: float = 1.0,
    max_sample_missing: float = 1.0,
    variants: VariantFilter = AUTOSOMES,
    keep: Names | None = None,
    exclude: Names | None = None,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
    checkpoint: str | None = None,
) -> Relatives:
    """The related pairs, as :func:`kinship`, also where counts of all pairs do not fit.

    Then samples are taken in strips, each with all before it, a pass for each strip; pairs are
    written as they are known. Counts and table are the same for any number of strips.

    table : path of PLINK's table (.kin0) to write.  overwrite : replace an existing one.
    least, listed : kinship from which on pairs are returned, and listed in the table; a number or
        a degree, as :meth:`Kinship.related`; listed=None: all.
    checkpoint : directory that keeps the related pairs of the strips that are done, and the sums
        of the one that is not: a run that was interrupted goes on from there.
    The others : as :func:`kinship`.

    Cost: P passes for P strips, the fewest that fit the memory limit; 12 n^2 bytes for one strip,
    20 n^2 / P or so for more, once and for each lane; n^2 p / 1e11 seconds or so of one core.
    Raises as :func:`kinship`; OccupiedError.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> calls = np.random.default_rng(0).integers(0, 3, size=(4, 500)).astype("int8")
    >>> calls[3] = calls[0]  # a duplicate
    >>> streampca.relatives(calls).pairs.degree.tolist()
    ['duplicate']
    """
    settings = PairSettings(
        maf=maf,
        max_missing=max_missing,
        max_sample_missing=max_sample_missing,
        variants=variants,
        keep=keep,
        exclude=exclude,
    )
    smallest = kinship_threshold(least, "least")
    shown = None if listed is None else kinship_threshold(listed, "listed")
    path = None if table is None else os.fspath(table)
    wanted = Wanted(path, smallest, shown, overwrite, checkpoint)
    done = sum_over_pairs(
        X,
        settings,
        lambda matrix, variants, limit: plan_relatives(matrix, variants, limit, wanted),
        "kinship",
        hard_calls=True,
        dim=dim,
        missing_value=missing_value,
        running=Running(memory_limit, scheduler, progress, checkpoint),
    )
    pairs, n_variants = done.answer
    return Relatives(pairs=pairs, least=smallest, n_variants=n_variants, **done.described)


@dataclass(frozen=True)
class Wanted:
    """Where pairs are written, and which.

    table : path, or None.  least : of the pairs that are returned.  listed : of those in the
    table, None = all.  overwrite : as in :func:`relatives`.  folder : of checkpoints, or None.
    """

    table: str | None = None
    least: float = THIRD
    listed: float | None = THIRD
    overwrite: bool = True
    folder: str | None = None


NOTHING_WRITTEN = Wanted()


def plan_relatives(
    matrix: ChunkedMatrix,
    wanted: Standardize,
    memory_limit: int | str | None,
    written: Wanted = NOTHING_WRITTEN,
    shares: Sequence[int] = SHARES,
    whole: bool = True,
) -> Planned[Any]:
    """The passes, planned: one for all pairs if that fits, else the fewest strips that do.

    shares : of the pairs in a strip, as :func:`strip_bounds`.  whole : whether one pass will do.
    Raises MemoryLimitError if none does.
    """
    n, p = matrix.shape
    refuse_many(p)
    room = parse_nbytes(memory_limit) or DEFAULT_BUDGET
    likely = [one for one in shares if PAIR_NBYTES * n * n / one <= room] or [shares[-1]]
    strips = partial(_strip_candidates, matrix, wanted, written, likely[:TRIED])
    if not whole:
        return choose(matrix, "kinship", strips(), memory_limit)
    one: Any = whole_kinship(matrix, wanted)
    solver = partial(_in_strips, matrix=matrix, bounds=[0, n], written=written)
    otherwise = strips if n > 2 else None  # of two samples there is one pair
    return choose(matrix, "kinship", [replace(one, solve=solver)], memory_limit, otherwise)


def _strip_candidates(
    matrix: ChunkedMatrix, wanted: Standardize, written: Wanted, shares: Sequence[int]
) -> list[Candidate[Any]]:
    """A candidate for each share."""
    (n, p), candidates = matrix.shape, []
    for share in shares:
        bounds = strip_bounds(n, share)
        specs = [_strip_pass(matrix, wanted, a, b, k) for k, (a, b) in _numbered(bounds)]
        hours = n * n * p / PAIR_VARIANTS / 3600
        reason = (
            f"calls as bits, counted for every pair, by {len(specs)} strips of samples: a pass "
            f"over the variants for each; about {hours:.2g} hours of one core"
        )
        held = {"counts of pairs": max(one.total_nbytes for one in specs)}
        solver = partial(_in_strips, matrix=matrix, bounds=bounds, written=written)
        candidates.append(
            Candidate("bit counts by strips", reason, tuple(specs), held, solve=solver)
        )
    return candidates


def strip_bounds(n: int, share: int) -> list[int]:
    """Bounds of strips whose samples, times all up to the last of the strip, are n^2 / share: the
    counts that it holds. Later strips are lower."""
    bounds = [0]
    while bounds[-1] < n:
        first = bounds[-1]
        height = (np.sqrt(first**2 + 4 * n * n / share) - first) / 2
        bounds.append(min(n, first + max(1, int(np.ceil(height)))))
    return bounds


def _numbered(bounds: list[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    return enumerate(pairwise(bounds), start=1)


def _strip_pass(
    matrix: ChunkedMatrix, wanted: Standardize, first: int, last: int, number: int
) -> PassSpec:
    """The pass of the samples [first, last)."""
    _, p = matrix.shape
    read = matrix if wanted.filters else select(matrix, samples=np.arange(last))
    counts = StripCounts(wanted=wanted, first=first, last=last)
    flops = p * (last - first) * (last + first) / 16
    spec = pass_spec(f"strip {number}", read, 1, {PAIRS: counts}, True, flops=flops)
    return replace(spec, matrix=read)


def _in_strips(
    planned: Planned[Any], *, matrix: ChunkedMatrix, bounds: list[int], written: Wanted
) -> Steps[tuple[SamplePairs, int]]:
    """(the related pairs, variants that count), by a pass for each strip."""
    samples = matrix.labels.samples
    saved = _Saved.of(planned, matrix, written)
    found, who, n_variants = [], names_in_tables(samples), 0
    opened = (
        nullcontext(None) if written.table is None else whole_file(written.table, written.overwrite)
    )
    with opened as file:
        if file is not None:
            file.write(heading(samples).encode())
        for number, (first, last) in _numbered(bounds):
            strip = saved.load(number, samples)
            if strip is None:
                after = number - 1 if saved.folder is not None else None
                done = yield Pass(planned.candidate.passes[number - 1], after=after)
                counts = done.accumulators.pop(PAIRS)
                if not (n_variants := counts.n_variants):
                    raise none_left(counts.wanted, matrix.shape[1])
                rows = _rows(counts, first, last, samples)
            else:
                pairs, n_variants = strip
                rows = iter([pairs])
            close = [no_pairs(samples)]
            for pairs in rows:
                if file is not None:
                    lines = lines_of_pairs(pairs, written.listed, who)
                    file.writelines(line.encode() for line in lines)
                close.append(pairs.where(~(pairs.kinship < saved.least)))
            joined = joined_pairs(close)
            if strip is None:
                saved.save(number, joined, n_variants)
            found.append(joined.where(joined.kinship >= written.least))
    saved.clear(len(bounds) - 1)
    return joined_pairs(found), n_variants


def _rows(counts: Any, first: int, last: int, samples: AxisLabels) -> Iterator[SamplePairs]:
    """The pairs of each sample of a strip."""
    counts.settle()
    if isinstance(counts, StripCounts):
        return (counts.pairs_of(i, samples) for i in range(first, last))
    whole = Kinship.of(counts, {"samples": samples})
    return (whole.pairs_of(i) for i in range(first, last))


def no_pairs(samples: AxisLabels) -> SamplePairs:
    """None of them."""
    empty = np.zeros(0, np.int64)
    return SamplePairs(empty, empty, empty, empty, empty, np.zeros(0), samples)


def joined_pairs(some: list[SamplePairs]) -> SamplePairs:
    """All of some lists of pairs, in this order."""
    arrays = {name: np.concatenate([getattr(one, name) for one in some]) for name in ARRAYS}
    return SamplePairs(**arrays, samples=some[0].samples)


@dataclass(frozen=True)
class _Saved:
    """The pairs of the strips that are done, in a folder of checkpoints.

    folder : None where nothing is saved: without checkpoints, or where the table lists all pairs.
    key : of what is computed.  least : kinship of the pairs that are kept.
    """

    folder: Path | None
    key: str
    least: float

    @classmethod
    def of(cls, planned: Planned[Any], matrix: ChunkedMatrix, written: Wanted) -> _Saved:
        """For these passes and thresholds."""
        least = written.least if written.listed is None else min(written.least, written.listed)
        if written.folder is None or (written.table is not None and written.listed is None):
            return cls(None, "", least)
        digest = hashlib.sha256(planned.plan.to_json().encode())
        digest.update(matrix.content_stamp().encode())
        counts: Any = planned.candidate.passes[0].accumulators[PAIRS]
        digest.update(repr((counts.wanted, least)).encode())
        return cls(Path(written.folder), digest.hexdigest(), least)

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"pairs-{number}"

    def load(self, number: int, samples: AxisLabels) -> tuple[SamplePairs, int] | None:
        """(the pairs of a strip, variants that count), or None where it is not done."""
        if self.folder is None or not is_bundle(self._path(number)):
            return None
        try:
            arrays, document = read_bundle(self._path(number))
        except SourceError:  # a damaged checkpoint costs only time
            return None
        if document.get("key") != self.key or set(arrays) != set(ARRAYS):
            return None
        return SamplePairs(**arrays, samples=samples), int(document["n_variants"])

    def save(self, number: int, pairs: SamplePairs, n_variants: int) -> None:
        """Keep the pairs of a strip."""
        if self.folder is None:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arrays = {name: getattr(pairs, name) for name in ARRAYS}
        write_bundle(self._path(number), arrays, {"key": self.key, "n_variants": n_variants})

    def clear(self, count: int) -> None:
        """Remove them."""
        for number in range(1, count + 1 if self.folder is not None else 1):
            remove_bundle(self._path(number))
