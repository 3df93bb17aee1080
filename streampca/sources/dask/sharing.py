"""What neighbouring strips share: kept from the first strip that computes it to the last.

``x.map_overlap``, a running sum, or chunks that do not line up: strips read in order compute each
task once, and what later strips still need is kept meanwhile. It is a cache: a strip that does
not find what it needs computes it. A slice that a later strip takes of a chunk is cut as soon as
all else of the chunk is done, so that the chunk can go.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.sizeof import sizeof

from streampca.sources.dask.graph import Key, Sizes
from streampca.sources.dask.outline import Array, Keys, Outline


@dataclass(frozen=True)
class Window:
    """The tasks to keep while strips are read in order.

    until : task -> the last strip that computes something from it.  nbytes : estimated, of all
    that is kept at once, at most.  reach : rows between the first and the last strip that use one
    read, at most; a span that is longer than this reads no chunk that two other spans read.
    ahead : strip -> the slices for later strips that are cut when it is read.
    """

    until: Mapping[Key, int] = field(default_factory=dict)
    nbytes: int = 0
    reach: int = 0
    ahead: Mapping[int, Sequence[Key]] = field(default_factory=dict)

    def only(self, keys: Collection[Key], strips: Iterable[int]) -> Window:
        """The same for these tasks of these strips."""
        until = {k: self.until[k] for k in keys if k in self.until}
        ahead = {s: [k for k in self.ahead.get(s, ()) if k in until] for s in strips}
        return Window(until, self.nbytes, self.reach, ahead)

    def cut_ahead(self, first: int, last: int) -> list[Key]:
        """The slices to cut when the strips [first, last) are read, for those that follow."""
        cut = (key for strip in range(first, last) for key in self.ahead.get(strip, ()))
        return [key for key in cut if self.until[key] >= last]


class Until(Mapping[Key, int]):
    """Task -> the last strip that computes something from it, of those that are kept.

    strips : (keys,) of each number; -1 of what is not kept.
    """

    def __init__(self, keys: Keys, strips: Array) -> None:
        self.keys_, self.strips = keys, strips

    def __getitem__(self, key: Key) -> int:
        if (strip := int(self.strips[self.keys_.place(key)])) < 0:
            raise KeyError(key)
        return strip

    def __len__(self) -> int:
        return int(np.count_nonzero(self.strips >= 0))

    def __iter__(self) -> Iterator[Key]:
        return map(self.keys_.key, np.flatnonzero(self.strips >= 0).tolist())


class Ahead(Mapping[int, Sequence[Key]]):
    """Strip -> the slices for later ones that are cut when it is read.

    places : the numbers of slices.  strips : the strip of each.
    """

    def __init__(self, keys: Keys, places: Array, strips: Array) -> None:
        order = np.argsort(strips, kind="stable")
        self.keys_, self.places, self.strips = keys, places[order], strips[order]

    def __getitem__(self, strip: int) -> list[Key]:
        first, last = np.searchsorted(self.strips, [strip, strip + 1])
        return [self.keys_.key(place) for place in self.places[first:last].tolist()]

    def __len__(self) -> int:
        return len(np.unique(self.strips))

    def __iter__(self) -> Iterator[int]:
        return iter(np.unique(self.strips).tolist())


def find_window(graph: Outline, users: Users, sizes: Sizes, lengths: Sequence[int]) -> Window:
    """The window of strips that are read in order, without its reach.

    lengths : rows of each strip.
    """
    begins, ends = users.first.copy(), users.until.copy()
    kept = users.used & (ends > begins)
    if not kept.any():
        return Window()
    slices, strips, chunks, done = _late_slices(graph, users, sizes, kept)
    begins[slices], ends[chunks] = strips, done
    kept = users.used & (ends > begins)
    places = np.flatnonzero(kept)
    nbytes = graph.sizes(places, sizes)
    steps = np.zeros(len(lengths) + 1)
    np.add.at(steps, begins[places], nbytes)
    np.add.at(steps, ends[places] + 1, -nbytes)
    return Window(
        Until(graph.keys, np.where(kept, ends, -1)),
        int(np.cumsum(steps).max(initial=0)),
        ahead=Ahead(graph.keys, slices, strips),
    )


def _late_slices(
    graph: Outline, users: Users, sizes: Sizes, kept: Array
) -> tuple[Array, Array, Array, Array]:
    """Slices and the strips that cut them, chunks and the strips after which these can go.

    Of chunks that are kept for slices alone, where these are smaller.
    """
    using, chunks = graph.links
    mine = users.used[using] & kept[chunks]
    using, chunks = using[mine], chunks[mine]
    cuts = graph.slices(using, chunks)
    done = users.first.copy()
    np.maximum.at(done, chunks[~cuts], users.first[using[~cuts]])
    late = cuts & (users.first[using] > done[chunks])
    using, chunks = using[late], chunks[late]
    nbytes = np.bincount(chunks, graph.sizes(using, sizes), minlength=len(kept))
    small = nbytes[chunks] < graph.sizes(chunks, sizes)
    using, chunks = using[small], chunks[small]
    return using, done[chunks], chunks, done[chunks]


class Results:
    """The results that a window keeps at present. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: dict[Key, Any] = {}
        self._nbytes: dict[Key, int] = {}
        self._lock = threading.Lock()

    def values(self) -> dict[Key, Any]:
        """The results that are kept."""
        with self._lock:
            return dict(self._values)

    def keep(self, key: Key, value: Any) -> None:
        """Keep a result, unless that would be more than the limit: of a slice, a copy."""
        nbytes = int(sizeof(value))
        with self._lock:
            if key not in self._values and sum(self._nbytes.values()) + nbytes <= self.limit:
                self._values[key], self._nbytes[key] = _without_rest(value), nbytes

    def forget(self, window: Window, strip: int) -> None:
        """Let go of what no strip from this one on needs."""
        with self._lock:
            for key in [k for k in self._values if window.until.get(k, -1) < strip]:
                del self._values[key], self._nbytes[key]


def _without_rest(value: Any) -> Any:
    """A copy of what is a part of a larger array, which it would keep from being freed."""
    whole = getattr(value, "base", None)
    if isinstance(whole, np.ndarray) and value.nbytes < whole.nbytes:
        return value.copy("K")
    return value


@dataclass(frozen=True)
class Keep:
    """A task that keeps the result of another one."""

    results: Results
    key: Key

    def __call__(self, value: Any) -> None:
        self.results.keep(self.key, value)


# What the strips of a Dask graph share, found in the graph without computing anything.
#
# An operand of all strips (``x.mean(0)`` in ``x - x.mean(0)``) is computed once before the first.
# What neighbours share (``map_overlap``, ``rechunk``) is kept while they are read, in a window.

MiB = 1024 * 1024
PREPARED_NBYTES = 64 * MiB  # of all results that are computed before the first strip
WINDOW_NBYTES = 1024 * MiB  # of what is kept for later strips
ROUNDS = 8  # of looking for shared operands inside shared operands


@dataclass(frozen=True)
class Sharing:
    """What strips of one dimension share, and what follows from it.

    cuts : operands to compute before the first strip.  stages : the same with what they need
    themselves, in order of computation.  firsts, lasts : sorted numbers of the first (last) strip
    that uses each read.  window : what is kept from one strip to the next.  held : estimated
    bytes of chunks that computing the operands needs at once, where they are rechunked for that.
    """

    cuts: frozenset[Key]
    stages: tuple[tuple[Key, ...], ...]
    prepared_chunks: int
    leaf_nbytes: float
    firsts: np.ndarray[Any, Any]
    lasts: np.ndarray[Any, Any]
    window: Window = field(default_factory=Window)
    held: int = 0

    def count(self, first: int, last: int) -> int:
        """Reads of the strips [first, last).

        Where ``last`` is less than ``first``, those that strips before the one and from the other
        on both use: at least so many, and all where reads that begin first also end first.
        """
        begun = int(np.searchsorted(self.firsts, last, "left"))
        return max(0, begun - int(np.searchsorted(self.lasts, first, "left")))

    def bare(self, keys: Collection[Key], strips: Iterable[int]) -> Sharing:
        """What reading these tasks of these strips needs, without what only planning needs."""
        none, window = np.empty(0, np.int64), self.window.only(keys, strips)
        return replace(self, cuts=frozenset(), stages=(), firsts=none, lasts=none, window=window)


@dataclass(frozen=True)
class Users:
    """Which strips use a task: from ``first`` to ``last``. ``inner``: used by a shared task.

    until : the last strip that computes something from it, where strips are read in order.
    used : whether any strip does.
    """

    first: Array
    last: Array
    until: Array
    inner: Array
    used: Array

    @classmethod
    def of(cls, graph: Outline, strips: Array) -> Users:
        """strips : (strips, keys) numbers of the keys of each."""
        n_strips, n_keys = strips.shape
        numbers = np.repeat(np.arange(n_strips), n_keys)
        own = strips.ravel()
        numbers, own = numbers[graph.tasks[own]], own[graph.tasks[own]]
        first = np.full(len(graph.keys), n_strips)
        last = np.full(len(graph.keys), -1)
        first[own] = last[own] = numbers
        until = last.copy()
        graph.down(first, np.minimum)
        graph.down(last, np.maximum)
        using, needs = graph.links
        users, needs = using[last[using] >= 0], needs[last[using] >= 0]
        np.maximum.at(until, needs, first[users])
        inner = np.zeros(len(first), bool)
        inner[needs[first[users] < last[users]]] = True
        return cls(first, last, until, inner, last >= 0)

    def groups(self, n_strips: int) -> Array:
        """(strips,) number of the group of adjacent strips that share nothing with others."""
        steps = np.zeros(n_strips + 1, np.int64)
        np.add.at(steps, self.first[self.used] + 1, 1)
        np.add.at(steps, self.last[self.used] + 1, -1)
        return np.asarray(np.cumsum(np.cumsum(steps[:n_strips]) == 0) - 1)


def find_sharing(
    graph: Outline, strips: Array, lengths: Sequence[int], nbytes: int, sizes: Sizes
) -> Sharing:
    """Operands to compute first, and what strips then still share.

    strips : (strips, keys) numbers of the output keys of each.  lengths : rows of each.
    nbytes : of the array.
    """
    weights = np.asarray(lengths, dtype=np.int64)
    step = nbytes / max(1, int(weights.sum()))
    cuts = np.zeros(len(graph.keys), bool)
    users = Users.of(graph, strips)
    reduced, whole, window = graph, users, find_window(graph, users, sizes, lengths)
    for _ in range(ROUNDS if window.until else 0):
        groups = users.groups(len(strips))
        counts, held = np.bincount(groups), np.bincount(groups, weights) * step
        # a small group is cheaper to hold than to read twice
        split = (counts > 1) & ((held > PREPARED_NBYTES) | (len(counts) == 1))
        found = _operands(reduced, strips, users, split) if split.any() else np.zeros(0, bool)
        if not found.any():
            break
        cuts |= found
        reduced = graph.fixed(cuts)
        users = Users.of(reduced, strips)
    if cuts.any():
        less = find_window(reduced, users, sizes, lengths)
        if 2 * less.nbytes > window.nbytes:  # nothing came apart
            cuts, reduced, users = np.zeros_like(cuts), graph, whole
        else:
            window = less
    leaves = users.used & reduced.reads
    firsts, lasts = users.first[leaves], users.last[leaves]
    leaf_nbytes = nbytes / max(1, len(firsts))
    stages = find_stages(graph, cuts, leaf_nbytes)
    return Sharing(
        frozenset(graph.keys_of(np.flatnonzero(cuts))),
        tuple(tuple(sorted(graph.keys_of(stage), key=str)) for stage in stages),
        prepared_chunks(graph, stages),
        leaf_nbytes,
        np.sort(firsts),
        np.sort(lasts),
        replace(window, reach=reach_of(firsts, lasts, lengths)),
    )


def reach_of(firsts: Array, lasts: Array, lengths: Sequence[int]) -> int:
    """Rows between the first and the last strip that use one read, at most."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return int((ends[lasts] - ends[np.minimum(firsts + 1, len(lengths))]).max(initial=0))


def _operands(graph: Outline, strips: Array, users: Users, split: Array) -> Array:
    """(keys,) the largest shared subgraphs that are operands of a group, not its data passed on.

    Chunks that are cut up for several strips are shared as well. An operand differs in that
    every chunk of its layer is used across more than half of the group, and in that strips still
    read something else once it is computed.
    """
    groups = users.groups(len(strips))
    counts, n_names = np.bincount(groups), len(graph.names)
    group = groups[np.minimum(users.first, len(strips) - 1)]
    layers = group * n_names + graph.named
    few = (2 * (users.last - users.first + 1) <= counts[group]) | (counts[group] == 1)
    narrow = np.unique(layers[users.used & few])
    origins, several = graph.origins()
    passed_on = ~several & np.isin(group * n_names + graph.named[origins], narrow)
    apart = users.used & split[group] & ~users.inner
    found = np.asarray(apart & ~np.isin(layers, narrow) & ~passed_on)
    reduced = graph.fixed(found)
    fresh = reduced.up(reduced.reads.astype(np.int8), np.maximum) > 0
    fed = np.zeros(len(counts), bool)
    fed[groups[fresh[strips].any(axis=1)]] = True
    return found & (fed[group] | graph.texts)


def find_stages(graph: Outline, cuts: Array, leaf_nbytes: float) -> list[Array]:
    """Numbers of operands in an order that keeps memory small.

    Computing ``((x - x.mean(0)) ** 2).sum(0)`` in one go would hold all of x from the mean to
    the end. What is used together with reads that it was made of is computed a stage earlier.
    """
    if not cuts.any():
        return []
    live = graph.needed(cuts)
    pivots = _pivots(graph, live, leaf_nbytes)
    level = graph.up(np.zeros(len(live), np.int64), np.maximum, pivots.astype(np.int64))
    wanted = np.flatnonzero(live & (pivots | cuts))
    return [wanted[level[wanted] == one] for one in np.unique(level[wanted])]


def _pivots(graph: Outline, live: Array, leaf_nbytes: float) -> Array:
    """(keys,) tasks of which a user also uses reads that they were made of."""
    pivots = np.zeros(len(live), bool)
    users, needs = graph.links
    users, needs = users[live[users]], needs[live[users]]
    used, using = (np.bincount(one, minlength=len(live)) for one in (needs, users))
    reads = live & (using == 0)
    least = PREPARED_NBYTES / leaf_nbytes
    if np.count_nonzero(reads) <= least:
        return pivots
    accompanied = np.zeros(len(live), bool)
    accompanied[needs[using[users] > 1]] = True
    most = graph.up(reads.astype(float), np.add)  # a read counts for each way to it
    for place in np.flatnonzero(accompanied & (used > 1) & (using > 0) & (most > least)).tolist():
        one = np.zeros(len(live), bool)
        one[place] = True
        made_of = reads & graph.needed(one)
        if np.count_nonzero(made_of) > least:
            related = graph.up(made_of.astype(np.int8), np.maximum) > 0
            own = np.isin(users, users[needs == place]) & (needs != place)
            pivots[place] = related[needs[own]].any()
    return pivots


def prepared_chunks(graph: Outline, stages: Sequence[Array]) -> int:
    """Reads that the stages execute."""
    total, known = 0, np.zeros(len(graph.keys), bool)
    for stage in stages:
        reduced, wanted = graph.fixed(known), np.zeros_like(known)
        wanted[stage] = True
        total += int(np.count_nonzero(reduced.needed(wanted) & reduced.reads))
        known |= wanted
    return total
