"""Kinship of all pairs: tables, relatives by degree, and samples without relatives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.genetics.tables import identifiers, six_digits, write_lines
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.columns import label_array
from streampca.matrix.labels import axis_from_saved, axis_to_saved, plain
from streampca.store import check_fields, check_shapes, read_bundle, understood, write_bundle

DEGREES = {"duplicate": 0.354, "first": 0.177, "second": 0.0884, "third": 0.0442}
SECOND = DEGREES["second"]
COUNTED = ("NSNP", "HETHET", "IBS0", "KINSHIP")  # columns of PLINK's tables


@dataclass(frozen=True, repr=False)
class SamplePairs:
    """Pairs of samples. All arrays are (m,).

    first, second : int64 numbers of the samples, the second before the first, as in PLINK's tables.
    nsnp, hethet, ibs0 : int64 variants called in both, heterozygous in both, opposite homozygotes;
        None what the estimator does not count.
    kinship : float64; of KING -inf or nan where a sample has no heterozygous call among them.
    samples : labels of all samples.
    """

    first: Array
    second: Array
    nsnp: Array
    hethet: Array | None
    ibs0: Array | None
    kinship: Array
    samples: AxisLabels

    @property
    def degree(self) -> Array:
        """(m,) "duplicate", "first", "second", "third" (from .354, .177, .0884, .0442 on) or ""."""
        names = ["", *reversed(DEGREES)]
        known = np.nan_to_num(self.kinship, nan=-np.inf)
        least = [*reversed(DEGREES.values())]
        return np.array(names)[np.searchsorted(least, known, side="right")]

    def columns(self) -> dict[str, Array]:
        """PLINK's columns, for ``pandas.DataFrame``: FID1, IID1, FID2, IID2, NSNP, HETHET, IBS0,
        KINSHIP; HETHET and IBS0 as shares of NSNP. FID only where there are families, HETHET and
        IBS0 where they were counted."""
        ids = [(name, label_array([*map(str, one)])) for name, one in identifiers(self.samples)]
        who = {
            f"{name}{number}": one[rows]
            for number, rows in ((1, self.first), (2, self.second))
            for name, one in ids
        }
        return {**who, **self.numbers()}

    def numbers(self) -> dict[str, Array]:
        """NSNP, HETHET, IBS0, KINSHIP."""
        counted = {"HETHET": self.hethet, "IBS0": self.ibs0}
        with np.errstate(invalid="ignore"):
            shares = {name: one / self.nsnp for name, one in counted.items() if one is not None}
        return {"NSNP": self.nsnp, **shares, "KINSHIP": self.kinship}

    def arrays(self) -> dict[str, Any]:
        """The arrays by their names."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: one for name, one in values.items() if isinstance(one, np.ndarray)}

    def where(self, wanted: Array) -> SamplePairs:
        """Some of them.  wanted : (m,) True."""
        return replace(self, **{name: one[wanted] for name, one in self.arrays().items()})

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        return f"<SamplePairs: {len(self)} pairs of {len(self.samples)} samples>"


class PairwiseKinship:
    """What kinship of every two of n samples is asked for: relatives, tables, files.

    ``pairs_of`` gives it row by row.
    """

    kind: ClassVar[str]  # in saved documents
    estimator: ClassVar[str]  # in words
    by_pair: ClassVar[tuple[str, ...]]  # the (n, n) arrays that are saved
    by_sample: ClassVar[tuple[str, ...]] = ()  # the (n,) arrays
    samples: AxisLabels
    n_variants: int

    @property
    def kinship(self) -> Array:
        """(n, n) float64, symmetric."""
        raise NotImplementedError

    def pairs_of(self, i: int) -> SamplePairs:
        """The pairs of sample i and each sample before it."""
        raise NotImplementedError

    def related(self, threshold: float | str = "third") -> SamplePairs:
        """The pairs whose kinship is at least this.

        threshold : a number, or "duplicate" (.354, also identical twins), "first" (.177), "second"
            (.0884), "third" (.0442): relatives of that degree or closer.
        """
        least = kinship_threshold(threshold, "threshold")
        rows = (self.pairs_of(i) for i in range(len(self.samples)))
        found = [one.where(one.kinship >= least) for one in rows]
        held = [one.arrays() for one in found]
        joined: dict[str, Any] = {
            name: np.concatenate([one[name] for one in held]) for name in held[0]
        }
        return replace(found[0], **joined)

    def unrelated(self, cutoff: float | str = SECOND) -> Array:
        """(n,) True for samples of which no two have a larger kinship: ``plink2 --king-cutoff``.

        The rule is greedy: the partner of the first sample with one relative left goes, and where
        there is none, the first sample with most relatives.  cutoff : as in :meth:`related`.
        """
        least = kinship_threshold(cutoff, "cutoff", smallest=0.0)
        close = self.related(least)
        close = close.where(close.kinship > least)
        return without_relatives(close.first, close.second, len(self.samples))

    # -- files ----------------------------------------------------------------------------------

    def write_table(
        self, path: str | os.PathLike[str], least: float | None = None, overwrite: bool = True
    ) -> Path:
        """Write all pairs as ``plink2 --make-king-table`` does (.kin0).

        least : leave out those of smaller kinship (``--king-table-filter``); as in PLINK, pairs
            whose kinship is not a number stay.
        Raises InvalidInputError as :meth:`LDPruning.write`.
        """
        write_lines(path, self._lines(least), overwrite)
        return Path(path)

    def _lines(self, least: float | None) -> Iterator[str]:
        yield heading(self.samples, self.pairs_of(0).numbers())
        who = names_in_tables(self.samples)
        for i in range(len(who)):
            yield from lines_of_pairs(self.pairs_of(i), least, who)

    def write_cutoff(
        self, prefix: str | os.PathLike[str], cutoff: float | str = SECOND, overwrite: bool = True
    ) -> tuple[Path, Path]:
        """Write the ids that :meth:`unrelated` keeps and leaves out, as ``plink2 --king-cutoff``:
        PREFIX.king.cutoff.in.id and PREFIX.king.cutoff.out.id."""
        return write_cutoff(prefix, self.samples, self.unrelated(cutoff), overwrite)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a directory: arrays with checksums and JSON, whole or not at all."""
        arrays, samples = axis_to_saved(self.samples, "samples")
        names = (*self.by_pair, *self.by_sample)
        values = {name: getattr(self, name) for name in names}
        arrays |= {name: one for name, one in values.items() if one is not None}
        kept = ("n_variants", "settings", "provenance", "plan")
        document = {name: plain(getattr(self, name)) for name in kept}
        return write_bundle(path, arrays, {**document, "samples": samples, "kind": self.kind})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what :meth:`save` wrote; every file is checked. Raises SourceError."""
        arrays, document = read_bundle(path)
        if (kind := document.pop("kind", None)) != cls.kind:
            raise SourceError(f"{path} is no {cls.kind}: it is a {kind!r:.80}")
        with understood(str(path)):
            samples = axis_from_saved(document.pop("samples"), "samples", arrays)
            values: dict[str, Any] = {**document, **arrays, "samples": samples}
            made = cls(**values)
            check_fields(made, str(path))
            n = len(samples)
            square = dict.fromkeys(cls.by_pair, (n, n))
            check_shapes(made, {**square, **dict.fromkeys(cls.by_sample, (n,))}, str(path))
        return made

    def to_xarray(self) -> Any:
        """``kinship`` (sample, sample_2), as an xarray.Dataset."""
        from streampca.sources.labelled.to_xarray import to_dataset

        names = self.samples.names()
        axes = [AxisLabels.plain(dim, len(names), names) for dim in ("sample", "sample_2")]
        return to_dataset({"kinship": (self.kinship, axes)}, {"n_variants": self.n_variants})

    # -- in words -------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready summary: samples, variants, and pairs of each degree."""
        degree = self.related("third").degree
        pairs = {name: int(np.count_nonzero(degree == name)) for name in DEGREES}
        return {"samples": len(self.samples), "variants": self.n_variants, "pairs": pairs}

    def __str__(self) -> str:
        pairs = ", ".join(f"{count} {name}" for name, count in self.to_dict()["pairs"].items())
        return f"{self._headline()}; pairs by degree: {pairs}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._headline()}>"

    def _headline(self) -> str:
        return f"{len(self.samples)} samples by {self.n_variants} variants"


@dataclass(frozen=True, repr=False, kw_only=True)
class Kinship(PairwiseKinship):
    """KING-robust kinship of every two of n samples, and the counts that it comes from.

    shared : (n, n) int32; for j < i, [i, j] are the variants heterozygous in both, [j, i] those
        with opposite homozygotes.
    het, lost : (n,) int64 heterozygous and missing calls of each sample.
    lost_het, lost_both : (n, n) int32 variants missing in the first sample and heterozygous in the
        second, missing in both; None where no call is missing.
    n_variants : that counted.  samples : labels.
    settings : of :func:`kinship`.  provenance : source, cost and versions.  plan : what was run.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> calls = np.random.default_rng(0).binomial(2, 0.5, size=(5, 800)).astype("int8")
    >>> calls[4, :400] = calls[0, :400]
    >>> found = streampca.kinship(calls)
    >>> close = found.related("second")
    >>> close.first.tolist(), close.second.tolist(), close.degree.tolist()
    ([4], [0], ['first'])
    """

    kind = "kinship"
    estimator = "KING-robust"
    by_pair = ("shared", "lost_het", "lost_both")
    by_sample = ("het", "lost")

    shared: Array
    het: Array
    lost: Array
    lost_het: Array | None = None
    lost_both: Array | None = None
    n_variants: int
    samples: AxisLabels
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Any, described: Mapping[str, Any]) -> Kinship:
        """From :class:`KinshipCounts`.  described : the other fields."""
        counts.settle()
        return cls(**{name: getattr(counts, name) for name in counts.fields}, **described)

    @property
    def kinship(self) -> Array:
        """(n, n) float64, symmetric, 0.5 on the diagonal; -inf or nan as :class:`SamplePairs`.

        Cost: computed each time, 8 n^2 bytes.
        """
        phi = np.full(self.shared.shape, 0.5)
        for i in range(1, len(phi)):
            phi[i, :i] = phi[:i, i] = self.pairs_of(i).kinship
        return phi

    @property
    def standard_error(self) -> float:
        """Of the kinship of two unrelated samples of one population, for independent variants.

        With h heterozygous calls of p in a sample, (g_i - g_j)^2 has mean 2h / p and variance
        2h / p + 2 (h / p)^2. Linkage makes it larger.
        """
        het = max(float(np.median(self.het)), 1.0)
        return float(np.sqrt(2 * het + 2 * het**2 / max(self.n_variants, 1)) / (4 * het))

    def pairs_of(self, i: int) -> SamplePairs:
        """The pairs of sample i and each sample before it."""
        lost: tuple[Array, Array, Array] | None = None
        if self.lost_het is not None and self.lost_both is not None:
            lost = self.lost_het[:i, i], self.lost_het[i, :i], self.lost_both[i, :i]
        shared = self.shared[i, :i], self.shared[:i, i]
        return pairs_of_counts(i, *shared, self.het, self.lost, lost, self.n_variants, self.samples)


def pairs_of_counts(
    i: int,
    het_het: Array,
    unlike: Array,
    het: Array,
    lost: Array,
    lost_of: tuple[Array, Array, Array] | None,
    n_variants: int,
    samples: AxisLabels,
) -> SamplePairs:
    """The pairs of sample i and each sample before it, from their counts (i,).

    het_het, unlike : heterozygous in both, opposite homozygotes.
    het, lost : heterozygous and missing calls of each sample.
    lost_of : missing in the other and heterozygous in i, missing in i and heterozygous in the
        other, missing in both; None where no call is missing.
    """
    hethet, ibs0 = het_het.astype(np.int64), unlike.astype(np.int64)
    mine, theirs = het[i] - hethet, het[:i] - hethet  # het in one, hom in the other
    nsnp = n_variants - lost[i] - lost[:i]
    if lost_of is not None:
        mine, theirs, nsnp = mine - lost_of[0], theirs - lost_of[1], nsnp + lost_of[2]
    with np.errstate(invalid="ignore", divide="ignore"):
        phi = 0.5 - (4 * ibs0 + mine + theirs) / (4 * (hethet + np.minimum(mine, theirs)))
    return SamplePairs(np.full(i, i), np.arange(i), nsnp, hethet, ibs0, phi, samples)


def without_relatives(first: Array, second: Array, n: int) -> Array:
    """(n,) False for the samples that are dropped until no related pair is left.

    first, second : (m,) the related pairs.
    Source: PLINK 2, ``--king-cutoff``.
    """
    relatives: list[set[int]] = [set() for _ in range(n)]
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        relatives[i].add(j)
        relatives[j].add(i)
    degree = np.array([len(one) for one in relatives])
    kept = np.ones(n, bool)
    while degree.any():
        single = int(np.argmax(degree == 1))
        dropped = next(iter(relatives[single])) if degree[single] == 1 else int(np.argmax(degree))
        for other in relatives[dropped]:
            relatives[other].discard(dropped)
            degree[other] -= 1
        relatives[dropped].clear()
        degree[dropped], kept[dropped] = 0, False
    return kept


def heading(samples: AxisLabels, columns: Iterable[str] = COUNTED) -> str:
    """The first line of a table of pairs."""
    ids = [name for name, _ in identifiers(samples)]
    return "#" + "\t".join([*(f"{name}{k}" for k in (1, 2) for name in ids), *columns]) + "\n"


def names_in_tables(samples: AxisLabels) -> list[str]:
    """FID and IID of each sample, as in a table."""
    return ["\t".join(map(str, one)) for one in zip(*(c for _, c in identifiers(samples)))]


def lines_of_pairs(pairs: SamplePairs, least: float | None, who: list[str]) -> Iterator[str]:
    """Lines of a table.  least : as :meth:`Kinship.write_table`.  who : names of all samples."""
    if least is not None:
        pairs = pairs.where(~(pairs.kinship < least))
    nsnp, *numbers = pairs.numbers().values()
    line = "\t".join(["{}", "{}", "{}", *["{:.6g}"] * len(numbers)]) + "\n"
    first, second = ([who[i] for i in one.tolist()] for one in (pairs.first, pairs.second))
    values = (six_digits(one).tolist() for one in numbers)
    yield from map(line.format, first, second, nsnp.tolist(), *values)


def write_cutoff(
    prefix: str | os.PathLike[str], samples: AxisLabels, kept: Array, overwrite: bool
) -> tuple[Path, Path]:
    """PREFIX.king.cutoff.in.id and .out.id.  kept : (n,) True for those of the first."""
    who = names_in_tables(samples)
    head = "#" + "\t".join(name for name, _ in identifiers(samples)) + "\n"
    written = cutoff_paths(prefix)
    for path, wanted in zip(written, (kept, ~kept), strict=True):
        lines = (f"{who[i]}\n" for i in np.flatnonzero(wanted).tolist())
        write_lines(path, (line for some in ([head], lines) for line in some), overwrite)
    return written


def cutoff_paths(prefix: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The two files that :meth:`Kinship.write_cutoff` writes."""
    stem = f"{os.fspath(prefix)}.king.cutoff"
    return Path(f"{stem}.in.id"), Path(f"{stem}.out.id")


def kinship_threshold(threshold: float | str, option: str, smallest: float = -np.inf) -> float:
    """A threshold of kinship by its name or as a number. Raises InvalidInputError."""
    if isinstance(threshold, str) and threshold in DEGREES:
        return DEGREES[threshold]
    number = isinstance(threshold, (int, float, np.number)) and not isinstance(threshold, bool)
    if not number or not smallest <= float(threshold) <= 0.5:
        names = ", ".join(DEGREES)
        least = "" if np.isinf(smallest) else f" from {smallest:g}"
        raise InvalidInputError(
            f"{option}={threshold!r}; expected a kinship{least} to 0.5, such as {SECOND}, or a "
            f"degree: {names}"
        )
    return float(threshold)
