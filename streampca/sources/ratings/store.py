"""Ratings on disk: sorted by user and item in bounded memory, then read as a sparse matrix."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.matrix import AxisLabels, Labels
from streampca.sources.local_files import ScratchFolder, append_to
from streampca.sources.npy import NpyReader, new_npy
from streampca.sources.sparse.matrices import CompressedMatrix

Array = np.ndarray[Any, Any]
RULES = ("last", "first", "mean", "error")  # which of several ratings of a cell counts
SORTED = 1 << 21  # ratings that are sorted in memory at a time
LINES = 1 << 20  # ratings that are read at a time
SPLITS = ("random", "time")


class RatingsMatrix(CompressedMatrix):
    """Users x items, float32; a cell that nobody rated is missing. From ``open_ratings``.

    times : reader of the time of every rating, in their order; or None.
    duplicates : ratings that did not count, since their user rated the item more than once.
    constant : what all ratings are, or None where they differ.
    """

    rated = True

    def __init__(
        self, folder: ScratchFolder, indptr: Array, labels: Labels, origin: tuple[Any, ...]
    ) -> None:
        names = ("data", "indices", "times")
        paths = [os.path.join(folder.path, f"{name}.npy") for name in names]
        data, indices = NpyReader(paths[0]), NpyReader(paths[1])
        shape = (len(labels.samples), len(labels.features))
        super().__init__(data, indices, indptr, 0, shape, labels, "the ratings")
        self.times = NpyReader(paths[2]) if os.path.exists(paths[2]) else None
        self.folder, self.origin, self.duplicates = folder, origin, 0
        self.constant: float | None = None
        self.resident_nbytes += 4 * self.entries  # items that each user has rated: a model has them

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {self.entries:,} ratings of {self.shape[1]:,} items by "
            f"{self.shape[0]:,} users>"
        )

    def paths(self) -> tuple[str, ...]:
        return (str(self.origin[0]),) if os.path.exists(str(self.origin[0])) else ()

    def seen(self) -> tuple[Array, Array]:
        """((users + 1,) int64, (ratings,) int32): where the items of each user begin, and these."""
        read = self.indices.read((slice(0, self.entries),))
        return self.indptr, np.asarray(read, np.int32)

    def pieces(self) -> Iterator[tuple[Array, Array, Array]]:
        """(users, items, ratings), a million at a time, by user; users and items are numbers."""
        for lines, part in self._parts():
            users = np.repeat(np.arange(*lines), np.diff(self.indptr[lines[0] : lines[1] + 1]))
            yield users, self.indices.read((part,)), self.data.read((part,))

    def _parts(self) -> Iterator[tuple[tuple[int, int], slice]]:
        for start, stop in pairwise(_cuts(self.indptr, LINES)):
            yield (start, stop), slice(int(self.indptr[start]), int(self.indptr[stop]))

    def split(
        self, share: float = 0.1, *, by: str = "random", seed: int = 0
    ) -> tuple[RatingsMatrix, RatingsMatrix]:
        """(ratings to fit to, ratings to judge by), of the same users and items.

        share : of all ratings that the second has.  by : "random", by ``seed``; or "time": those
            after a moment, as they come in use. Users and items who come later are cold then.

        Cost: one pass; another scratch folder of the same size. By time 8 bytes a rating.
        """
        if not 0.0 < share < 1.0 or by not in SPLITS:
            raise InvalidInputError(
                f"split({share!r}, by={by!r}); expected a share in (0, 1) and one of {SPLITS}"
            )
        after = self._moment(share) if by == "time" else None
        rng = np.random.default_rng((seed, 21))
        with Lines(self) as training, Lines(self) as held_out:
            for lines, part in self._parts():
                data, indices = self.data.read((part,)), self.indices.read((part,))
                times = None if self.times is None else self.times.read((part,))
                users = np.repeat(np.arange(*lines), np.diff(self.indptr[lines[0] : lines[1] + 1]))
                held = rng.random(len(users)) < share
                if after is not None and times is not None:
                    held = times > after
                for side, kept in ((training, ~held), (held_out, held)):
                    moments = None if times is None else times[kept]
                    side.add(users[kept], indices[kept], data[kept], moments)
            origin = (*self.origin, share, by, seed)
            labels = self.labels
            return training.matrix(labels, (*origin, 0)), held_out.matrix(labels, (*origin, 1))

    def _moment(self, share: float) -> float:
        if self.times is None:
            raise InvalidInputError(
                "by='time': the ratings were opened without times; say open_ratings(..., time=...)"
            )
        times = self.times.read((slice(0, self.entries),))
        place = max(0, round((1.0 - share) * len(times)) - 1)
        return float(np.partition(times, place)[place])


def _cuts(indptr: Array, most: int) -> list[int]:
    """Lines between which at most so many entries lie, but for longer lines."""
    cuts = [0]
    while cuts[-1] < len(indptr) - 1:
        reach = int(np.searchsorted(indptr, indptr[cuts[-1]] + most, side="right")) - 1
        cuts.append(max(cuts[-1] + 1, reach))
    return cuts


class Spill:
    """Ratings in the order of their source, in a scratch file."""

    def __init__(self, timed: bool) -> None:
        self.folder, self.timed, self.entries = ScratchFolder(), timed, 0
        fields = [("user", "<i4"), ("item", "<i4"), ("rating", "<f4")]
        self.dtype = np.dtype(fields + [("time", "<f8")] * timed)
        self.counts = np.zeros(0, np.int64)
        self.path = os.path.join(self.folder.path, "spill")
        self._file = open(self.path, "w+b", buffering=0)  # noqa: SIM115

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, users: Array, items: Array, ratings: Array, times: Array | None) -> None:
        """Append a piece."""
        rows = np.empty(len(users), self.dtype)
        rows["user"], rows["item"], rows["rating"] = users, items, ratings
        if times is not None:
            rows["time"] = times
        append_to(self._file, rows)
        counts = np.bincount(users, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts, self.entries = counts, self.entries + len(rows)

    def matrix(
        self, names: tuple[Array, Array], dims: tuple[str, str], rule: str, path: str, where: str
    ) -> RatingsMatrix:
        """The sorted ratings.  names : ids of users and items.  dims : what they are called."""
        if not self.entries:
            raise SourceError(f"{where} has no rating")
        if dims[0].isdigit():  # a file without a header
            dims = ("user", "item")
        axes = [
            AxisLabels((dim,), (len(ids),), {dim: ids})
            for dim, ids in zip(dims, names, strict=True)
        ]
        labels = Labels(axes[0], axes[1], "rating")
        with Lines(self) as lines:
            for rows in self._sorted():
                lines.add(*_of_cells(rows, rule, labels, where))
            made = lines.matrix(labels, (os.path.realpath(path) if path else where, rule))
        os.remove(self.path)
        made.duplicates = self.entries - made.entries
        made.note = f"{where} was sorted by user, once, in a scratch folder"
        if made.duplicates:
            went = "went into the means" if rule == "mean" else "do not count"
            made.note += (
                f"; {made.duplicates} of {self.entries} ratings are of an item that their user "
                f"rated more than once, and {went} (duplicates={rule!r})"
            )
        if made.constant is not None:
            made.note += f"; all ratings are {made.constant:g}: they say who took what, no more"
        return made

    def _sorted(self) -> Iterator[Array]:
        """Rows of some users after the other, sorted by user, item and time, stably.

        Users are cut into ranges that fit into memory, and their rows moved together first.
        """
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        cuts = _cuts(ends, SORTED)
        if len(cuts) > 2:
            self._partition(np.array(cuts), ends)
        keys = ["time"] * self.timed + ["item", "user"]
        for first, last in pairwise(ends[cuts].tolist()):
            rows = self._rows(self._file, first, last - first)
            yield rows[np.lexsort([rows[key] for key in keys])]

    def _rows(self, file: Any, first: int, count: int) -> Array:
        file.seek(first * self.dtype.itemsize)
        return np.fromfile(file, self.dtype, count)

    def _partition(self, cuts: Array, ends: Array) -> None:
        """Move the rows of each range of users together, in their order."""
        path = self.path + "-parts"
        file = open(path, "w+b", buffering=0)  # noqa: SIM115
        places = ends[cuts[:-1]].copy()
        for start in range(0, self.entries, LINES):
            rows = self._rows(self._file, start, min(LINES, self.entries - start))
            part = np.searchsorted(cuts, rows["user"], side="right") - 1
            order = np.argsort(part, kind="stable")
            edges = np.searchsorted(part[order], np.arange(len(cuts)))
            rows = rows[order]
            for i, (low, high) in enumerate(pairwise(edges.tolist())):
                file.seek(int(places[i]) * self.dtype.itemsize)
                append_to(file, rows[low:high])
                places[i] += high - low
        self._file.close()
        os.replace(path, self.path)
        self._file = file


def _of_cells(rows: Array, rule: str, labels: Labels, where: str) -> tuple[Any, ...]:
    """(users, items, ratings, times or None) with one rating for each cell, of sorted rows."""
    again = (rows["user"][1:] == rows["user"][:-1]) & (rows["item"][1:] == rows["item"][:-1])
    first, last = np.append(True, ~again), np.append(~again, True)
    if rule == "error" and again.any():
        one = rows[int(np.flatnonzero(again)[0])]
        raise InvalidInputError(
            f"{where}: user {labels.samples.name(int(one['user']))} rated item "
            f"{labels.features.name(int(one['item']))} more than once; expected one rating. Say "
            "which counts: duplicates='last', 'first' or 'mean'"
        )
    kept = rows[first if rule == "first" else last]
    ratings = kept["rating"]
    if rule == "mean":
        begins = np.flatnonzero(first)
        sums = np.add.reduceat(rows["rating"].astype(np.float64), begins)
        ratings = sums / np.diff(np.append(begins, len(rows)))
    return kept["user"], kept["item"], ratings, kept["time"] if "time" in rows.dtype.names else None


class Lines:
    """Ratings that come sorted by user, as the arrays of a matrix in a scratch folder."""

    def __init__(self, like: Any) -> None:
        """like : a matrix or a spill with at least as many ratings."""
        timed = like.times is not None if isinstance(like, RatingsMatrix) else like.timed
        self.folder, self.entries, self.most = ScratchFolder(), 0, like.entries
        names = {"data": "<f4", "indices": "<i4"} | ({"times": "<f8"} if timed else {})
        kinds = {name: np.dtype(kind) for name, kind in names.items()}
        self.files = {
            name: (new_npy(os.path.join(self.folder.path, f"{name}.npy"), kind, self.most), kind)
            for name, kind in kinds.items()
        }
        self.counts = np.zeros(0, np.int64)
        self.digests = dict.fromkeys(kinds, 0)
        self.least, self.greatest = np.inf, -np.inf

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        for file, _dtype in self.files.values():
            file.close()

    def add(self, users: Array, items: Array, ratings: Array, times: Array | None) -> None:
        """Append a piece."""
        columns = {"data": ratings, "indices": items, "times": times}
        for name, (file, dtype) in self.files.items():
            written = np.ascontiguousarray(columns[name], dtype)
            self.digests[name] = zlib.crc32(written.data, self.digests[name])
            append_to(file, written)
        counts = np.bincount(users, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts, self.entries = counts, self.entries + len(users)
        self.least = min(self.least, float(np.min(ratings, initial=np.inf)))
        self.greatest = max(self.greatest, float(np.max(ratings, initial=-np.inf)))

    def matrix(self, labels: Labels, origin: tuple[Any, ...]) -> RatingsMatrix:
        """The matrix of all pieces. Raises InvalidInputError where there is none."""
        if not self.entries:
            raise InvalidInputError("a part of the split has no rating; choose another share")
        for file, dtype in self.files.values():
            # the header names all ratings of the source; what duplicates leave is never read
            file.truncate(file.tell() + (self.most - self.entries) * dtype.itemsize)
            file.close()
        lines = len(labels.samples)
        counts = np.zeros(lines, np.int64)
        counts[: len(self.counts)] = self.counts
        indptr = np.concatenate([[0], np.cumsum(counts)])
        made = RatingsMatrix(self.folder, indptr, labels, (*origin, *self.digests.values()))
        made.constant = self.least if self.least == self.greatest else None
        return made
