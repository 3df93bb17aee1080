"""What neighbouring strips share: kept from the first strip that computes it to the last.

``x.map_overlap``, a running sum, or chunks that do not line up: strips read in order compute each
task once, and what later strips still need is kept meanwhile. It is a cache: a strip that does
not find what it needs computes it. A slice that a later strip takes of a chunk is cut as soon as
all else of the chunk is done, so that the chunk can go.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.core import toposort
from dask.sizeof import sizeof

from streampca.sources.dask.graph import Graph, Key, Sizes, layer_of, slice_of


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


def find_window(
    graph: Graph, first: Mapping[Key, int], until: Mapping[Key, int], n_strips: int, sizes: Sizes
) -> Window:
    """The window of strips that are read in order, without its reach.

    first : task -> the strip that computes it.  until : task -> the last strip that computes
    something from it.
    """
    earlier, ends = _late_slices(graph, first, until, sizes)
    begins, ends = {**first, **earlier}, {**until, **ends}
    kept = {k: last for k, last in ends.items() if last > begins[k]}
    steps = np.zeros(n_strips + 1)
    for key, last in kept.items():
        nbytes = sizes.of_node(key, graph.nodes[key])
        steps[begins[key]] += nbytes
        steps[last + 1] -= nbytes
    ahead: dict[int, list[Key]] = {}
    for key, strip in earlier.items():
        ahead.setdefault(strip, []).append(key)
    return Window(kept, int(np.cumsum(steps).max(initial=0)), ahead=ahead)


def _late_slices(
    graph: Graph, first: Mapping[Key, int], until: Mapping[Key, int], sizes: Sizes
) -> tuple[dict[Key, int], dict[Key, int]]:
    """(slice -> the strip that cuts it, chunk -> the strip after which it can go).

    Of chunks that are kept for slices alone, where these are smaller.
    """
    users: dict[Key, list[Key]] = {k: [] for k, last in until.items() if last > first[k]}
    for key in first:
        for need in graph.needs[key]:
            if need in users:
                users[need].append(key)
    earlier: dict[Key, int] = {}
    ends: dict[Key, int] = {}
    for key, using in users.items():
        slices = {k for k in using if (cut := slice_of(graph.nodes[k])) and cut[0] == key}
        done = max((first[k] for k in using if k not in slices), default=first[key])
        late = [k for k in slices if first[k] > done]
        if late and sum(sizes.of_node(k, graph.nodes[k]) for k in late) < sizes(key):
            ends[key] = done
            earlier |= dict.fromkeys(late, done)
    return earlier, ends


class Results:
    """The results that a window keeps at present. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._values: dict[Key, Any] = {}
        self._nbytes: dict[Key, int] = {}
        self._lock = threading.Lock()

    def values(self) -> dict[Key, Any]:
        """All of them."""
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


# --------------------------------------------------------------------------------------------------
# What the strips of a Dask graph share, found in the graph without computing anything.
#
# An operand of all strips (``x.mean(0)`` in ``x - x.mean(0)``) is computed once before the first.
# What neighbours share (``map_overlap``, ``rechunk``) is kept while they are read, in a window.

MiB = 1024 * 1024
PREPARED_NBYTES = 64 * MiB  # of all results that are computed before the first strip
WINDOW_NBYTES = 1024 * MiB  # of what is kept for later strips
ROUNDS = 8  # of looking for shared operands inside shared operands

MANY = object()  # more than one read


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
        """Reads of the strips [first, last)."""
        begun = int(np.searchsorted(self.firsts, last, "left"))
        return max(0, begun - int(np.searchsorted(self.lasts, first, "left")))

    def count_shared(self, last: int, first: int) -> int:
        """Reads that strips before ``last`` and strips from ``first`` on both use.

        At least so many: all of them where reads that are used first are also done with first.
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
    """

    first: dict[Key, int]
    last: dict[Key, int]
    until: dict[Key, int]
    inner: set[Key]

    def groups(self, n_strips: int) -> np.ndarray[Any, Any]:
        """(strips,) number of the group of adjacent strips that share nothing with others."""
        steps = np.zeros(n_strips + 1, np.int64)
        for key, first in self.first.items():
            steps[first + 1] += 1
            steps[self.last[key] + 1] -= 1
        return np.cumsum(np.cumsum(steps[:n_strips]) == 0) - 1


def find_sharing(
    graph: Graph,
    strips: Sequence[Sequence[Key]],
    lengths: Sequence[int],
    nbytes: int,
    sizes: Sizes,
) -> Sharing:
    """Operands to compute first, and what strips then still share.

    strips : the output keys of each strip.  lengths : rows of each.  nbytes : of the array.
    """
    order = [k for k in toposort(graph.needs, dependencies=graph.needs) if k in graph.needs]
    weights = np.asarray(lengths, dtype=np.int64)
    step = nbytes / max(1, int(weights.sum()))
    cuts: set[Key] = set()
    given, users = graph, _users(graph, order, strips)
    whole, window = users, find_window(graph, users.first, users.until, len(strips), sizes)
    for _ in range(ROUNDS if window.until else 0):
        groups = users.groups(len(strips))
        counts, held = np.bincount(groups), np.bincount(groups, weights) * step
        # a small group is cheaper to hold than to read twice
        split = (counts > 1) & ((held > PREPARED_NBYTES) | (len(counts) == 1))
        found = _operands(given, order, strips, users, split) if split.any() else set()
        if not found:
            break
        cuts |= found
        given = graph.fixed(dict.fromkeys(cuts))
        users = _users(given, order, strips)
    if cuts:
        less = find_window(given, users.first, users.until, len(strips), sizes)
        if 2 * less.nbytes > window.nbytes:  # nothing came apart
            cuts, given, users = set(), graph, whole
        else:
            window = less
    leaves = [k for k in users.first if given.is_read(k)]
    firsts, lasts = (
        np.fromiter((of[k] for k in leaves), np.int64, len(leaves))
        for of in (users.first, users.last)
    )
    leaf_nbytes = nbytes / max(1, len(leaves))
    stages = find_stages(graph, order, cuts, leaf_nbytes)
    return Sharing(
        frozenset(cuts),
        stages,
        prepared_chunks(graph, stages),
        leaf_nbytes,
        np.sort(firsts),
        np.sort(lasts),
        replace(window, reach=reach_of(firsts, lasts, lengths)),
    )


def reach_of(
    firsts: np.ndarray[Any, Any], lasts: np.ndarray[Any, Any], lengths: Sequence[int]
) -> int:
    """Rows between the first and the last strip that use one read, at most."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return int((ends[lasts] - ends[np.minimum(firsts + 1, len(lengths))]).max(initial=0))


def _users(graph: Graph, order: Sequence[Key], strips: Sequence[Sequence[Key]]) -> Users:
    """For each task that strips compute, which strips use it."""
    users = Users({}, {}, {}, set())
    for number, keys in enumerate(strips):
        for key in keys:
            if key in graph.needs:
                users.first.setdefault(key, number)
                users.last[key] = users.until[key] = number
    for key in reversed(order):
        if key not in users.first:
            continue
        first, last = users.first[key], users.last[key]
        for need in graph.needs[key]:
            users.first[need] = min(users.first.get(need, first), first)
            users.last[need] = max(users.last.get(need, last), last)
            users.until[need] = max(users.until.get(need, first), first)
            if first < last:
                users.inner.add(need)
    return users


def _operands(
    graph: Graph,
    order: Sequence[Key],
    strips: Sequence[Sequence[Key]],
    users: Users,
    split: np.ndarray[Any, Any],
) -> set[Key]:
    """The largest shared subgraphs that are operands of a group, not its data passed on.

    Chunks that are cut up for several strips are shared as well. An operand differs in that
    every chunk of its layer is used across more than half of the group, and in that strips still
    read something else once it is given.
    """
    groups = users.groups(len(strips))
    counts = np.bincount(groups)
    group = {k: int(groups[first]) for k, first in users.first.items()}
    narrow = {
        (g, layer_of(k))
        for k, g in group.items()
        if 2 * (users.last[k] - users.first[k] + 1) <= counts[g] or counts[g] == 1
    }
    origins: dict[Key, Any] = {}
    for key in order:
        if key in group:
            above = {origins[n] for n in graph.needs[key]}
            origins[key] = key if not above else above.pop() if len(above) == 1 else MANY
    found = {
        k
        for k, g in group.items()
        if split[g]
        and k not in users.inner
        and (g, layer_of(k)) not in narrow
        and (origins[k] is MANY or (g, layer_of(origins[k])) not in narrow)
    }
    given = graph.fixed(dict.fromkeys(found))
    fresh: set[Key] = set()
    for key in order:
        if given.is_read(key) or not fresh.isdisjoint(given.needs.get(key, ())):
            fresh.add(key)
    fed = {int(groups[i]) for i, keys in enumerate(strips) if not fresh.isdisjoint(keys)}
    return {k for k in found if group[k] in fed or isinstance(k, str)}


def find_stages(
    graph: Graph, order: Sequence[Key], cuts: Collection[Key], leaf_nbytes: float
) -> tuple[tuple[Key, ...], ...]:
    """Operands in an order that keeps memory small.

    Computing ``((x - x.mean(0)) ** 2).sum(0)`` in one go would hold all of x from the mean to
    the end. What is used together with reads that it was made of is computed a stage earlier.
    """
    live = Graph(graph.cull(cuts), graph.links).needs
    order = [k for k in order if k in live]
    users: dict[Key, list[Key]] = {k: [] for k in order}
    for key in order:
        for need in live[key]:
            users[need].append(key)
    reads = sum(not needs for needs in live.values())
    pivots = set()
    if reads * leaf_nbytes > PREPARED_NBYTES:
        pivots = {
            k for k in order if len(users[k]) > 1 and _is_pivot(live, users[k], k, leaf_nbytes)
        }
    level: dict[Key, int] = {}
    for key in order:
        level[key] = max((level[n] + (n in pivots) for n in live[key]), default=0)
    stages: dict[int, list[Key]] = {}
    for key in order:
        if key in pivots or key in cuts:
            stages.setdefault(level[key], []).append(key)
    return tuple(tuple(sorted(stages[i], key=str)) for i in sorted(stages))


def _is_pivot(
    needs: Mapping[Key, Sequence[Key]], users: Sequence[Key], key: Key, leaf_nbytes: float
) -> bool:
    """Whether a task that uses ``key`` also uses, beside it, reads that ``key`` was made of."""
    reads = {k for k in _ancestors(needs, [key]) if not needs[k]}
    if len(reads) * leaf_nbytes <= PREPARED_NBYTES:
        return False
    return any(
        not reads.isdisjoint(_ancestors(needs, [n for n in needs[user] if n != key]))
        for user in users
    )


def _ancestors(needs: Mapping[Key, Sequence[Key]], keys: Iterable[Key]) -> set[Key]:
    found: set[Key] = set()
    todo = list(keys)
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo.extend(needs[key])
    return found


def prepared_chunks(graph: Graph, stages: Iterable[Sequence[Key]]) -> int:
    """Reads that the stages execute."""
    total, known = 0, graph
    for stage in stages:
        total += known.count_reads(known.cull(stage))
        known = known.fixed(dict.fromkeys(stage))
    return total
