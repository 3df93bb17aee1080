"""A Dask graph in outline: which task needs which, as numbers, without the tasks.

What strips share is found in arrays with one place for each task: graphs of a hundred thousand
chunks are looked through in a second, and their blockwise and overlapping layers are not made.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import scipy

from streampca.sources.dask.graph import Key, Sizes, known, layer_of, slice_of

Array = np.ndarray[Any, Any]
PLAIN: dict[Any, Callable[[Any, Any], Any]] = {  # of two numbers
    np.minimum: min,
    np.maximum: max,
    np.add: operator.add,
}


class UnclearError(Exception):
    """The layers do not say enough; the whole graph does."""


class Grid:
    """The keys (name, i, j, ...) of all blocks of a layer.

    axes : the numbers in the keys, of each dimension: fractions too, of the slices of an overlap.
    lengths : rows of the blocks, of each dimension and number; None where nobody says.
    cuts : whether a block is a slice of the one that it is made of; None of a grid without slices.
    """

    def __init__(
        self,
        name: str,
        axes: Sequence[Sequence[float]],
        lengths: Sequence[Array] | None = None,
        itemsize: int = 0,
        cuts: Array | None = None,
    ) -> None:
        self.name, self.axes, self.shape = name, axes, tuple(map(len, axes))
        self.lengths, self.itemsize, self.cuts = lengths, itemsize, cuts
        self._places = [
            axis if isinstance(axis, range) else {n: i for i, n in enumerate(axis)} for axis in axes
        ]

    def place(self, key: Key) -> int:
        """Where a key is among all. Raises KeyError."""
        if not isinstance(key, tuple) or len(key) != 1 + len(self.axes):
            raise KeyError(key)
        found = 0
        for number, places, n in zip(key[1:], self._places, self.shape, strict=True):
            if number not in places:
                raise KeyError(key)
            found = found * n + (number if isinstance(places, range) else places[number])
        return found

    def key(self, place: int) -> Key:
        """The key there."""
        numbers = np.unravel_index(place, self.shape) if self.shape else ()
        return (self.name, *(axis[int(i)] for axis, i in zip(self.axes, numbers, strict=True)))

    def nbytes(self) -> Array | None:
        """(blocks,) bytes of each; None where nobody says."""
        if self.lengths is None:
            return None
        sizes = np.full((), float(self.itemsize))
        for length in self.lengths:
            sizes = sizes[..., None] * length
        return sizes.ravel()


class Keys:
    """All keys of a graph: those of grids, then those that are listed one by one."""

    def __init__(self, grids: Iterable[Grid], listed: Mapping[Key, Any]) -> None:
        self.grids = {one.name: one for one in grids}
        sizes = [math.prod(one.shape) for one in self.grids.values()]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self.starts = dict(zip(self.grids, starts.tolist()[:-1], strict=True))
        self._starts, self._grids = starts[:-1], list(self.grids.values())
        self.n_grids = int(starts[-1])
        self.listed = list(listed)
        self._places = {key: self.n_grids + i for i, key in enumerate(self.listed)}

    def __len__(self) -> int:
        return self.n_grids + len(self.listed)

    def place(self, key: Key) -> int:
        """The number of a key. Raises KeyError."""
        if (listed := self._places.get(key)) is not None:
            return listed
        grid: Grid = self.grids[layer_of(key)]
        place: int = self.starts[grid.name] + grid.place(key)
        return place

    def key(self, place: int) -> Key:
        """The key of a number."""
        if place >= self.n_grids:
            return self.listed[place - self.n_grids]
        grid = int(np.searchsorted(self._starts, place, "right")) - 1
        return self._grids[grid].key(place - int(self._starts[grid]))

    def names(self) -> tuple[Array, list[Key]]:
        """(keys,) which of the names the key of each number has; the names."""
        names: dict[Key, int] = {one: i for i, one in enumerate(self.grids)}
        sizes = [math.prod(one.shape) for one in self._grids]
        listed = [names.setdefault(layer_of(key), len(names)) for key in self.listed]
        numbers = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), listed])
        return numbers.astype(np.int64), list(names)

    def whole(self, name: str) -> Array:
        """The numbers of all keys of a grid, in its shape."""
        shape = self.grids[name].shape
        numbers: Array = np.arange(math.prod(shape)).reshape(shape) + self.starts[name]
        return numbers

    def table(self, name: Key, numbers: Sequence[range]) -> Array:
        """The numbers of the keys (name, i, j, ...). Raises KeyError where one is missing."""
        shape = tuple(map(len, numbers))
        grid = self.grids.get(name) if isinstance(name, str) else None
        if grid is None or not math.prod(shape):
            places = [self.place((name, *index)) for index in itertools.product(*numbers)]
            return np.asarray(places, np.int64).reshape(shape)
        self.place((name, *(number[-1] for number in numbers)))
        return self.whole(grid.name)[tuple(slice(number.start, number.stop) for number in numbers)]


@dataclass(frozen=True)
class Step:
    """Needs of tasks that do not need one another; or of a chain, one after the other."""

    users: Array
    needs: Array
    chained: bool = False

    def among(self, tasks: Array) -> Step:
        """Those of these tasks alone."""
        both = tasks[self.users] & tasks[self.needs]
        return Step(self.users[both], self.needs[both], self.chained)

    def pairs(self) -> Iterable[tuple[int, int]]:
        """Users and what they need, one after the other."""
        return zip(self.users.tolist(), self.needs.tolist(), strict=True)


class Outline:
    """Numbers for the keys of a graph, and for each what it needs.

    users, needs : (links,) one number of a key needs another.  nodes : of the keys that are listed;
    those of grids are tasks.  values : keys whose values are at hand: no tasks.
    """

    def __init__(
        self,
        keys: Keys,
        users: Array,
        needs: Array,
        nodes: Mapping[Key, Any],
        tasks: Array,
        values: Array | None = None,
    ) -> None:
        self.keys, self.users, self.needs, self.nodes = keys, users, needs, nodes
        self.values = np.zeros(len(keys), bool) if values is None else values
        self.tasks = tasks & ~self.values
        self.named, self.names = keys.names()
        self._nbytes: Array | None = None
        texts = [place for place, key in enumerate(keys.listed) if isinstance(key, str)]
        self.texts = np.zeros(len(keys), bool)
        self.texts[keys.n_grids + np.asarray(texts, np.int64)] = True

    def fixed(self, values: Array) -> Outline:
        """The same graph with values in place of these nodes."""
        reduced = object.__new__(Outline)
        reduced.__dict__ = {k: v for k, v in self.__dict__.items() if k != "reads"}
        reduced.values = self.values | values
        reduced.tasks = self.tasks & ~values
        reduced.steps = [step.among(reduced.tasks) for step in self.steps]
        reduced.links = reduced._between(*self.links)
        return reduced

    def _between(self, users: Array, needs: Array) -> tuple[Array, Array]:
        between = self.tasks[users] & self.tasks[needs]
        return users[between], needs[between]

    @cached_property
    def links(self) -> tuple[Array, Array]:
        """(users, needs) of tasks alone."""
        return self._between(self.users, self.needs)

    @cached_property
    def reads(self) -> Array:
        """(keys,) whether each is a read: see :meth:`Graph.is_read`."""
        waits, links, apart = (np.zeros(len(self.keys), bool) for _ in range(3))
        waits[self.links[0]] = True
        links[self.users] = True
        apart[self.users[self.texts[self.needs] | ~self.values[self.needs]]] = True
        return np.asarray(self.tasks & ~waits & (~links | apart))

    @cached_property
    def steps(self) -> list[Step]:
        """The needs of all tasks, from the last ones to the reads."""
        users, needs = self.links
        ranks = _ranks(self.named[users], self.named[needs], len(self.names))
        of_user, of_need = (ranks[self.named[one]] for one in (users, needs))
        sort = np.lexsort((of_user != of_need, of_user))  # within a knot first
        users, needs, of_user, of_need = (one[sort] for one in (users, needs, of_user, of_need))
        inside = of_user == of_need
        bounds = np.flatnonzero(np.diff(2 * of_user - inside)) + 1
        parts = zip(*(np.split(one, bounds) for one in (users, needs, inside)), strict=True)
        return [_chain(u, n) if i.any() else Step(u, n) for u, n, i in parts if len(u)]

    def down(self, values: Array, take: Any) -> Array:
        """Values of users passed on to what they need, in place: the least, or the most."""
        plain = PLAIN[take]
        for step in self.steps:
            if step.chained:
                listed = values.tolist()  # a list is many times faster, one by one
                for user, need in step.pairs():
                    listed[need] = plain(listed[need], listed[user])
                values[:] = listed
            else:
                take.at(values, step.needs, values[step.users])
        return values

    def needed(self, wanted: Array, known: Array | None = None) -> Array:
        """(keys,) whether each is one of these tasks, or they need it; not what known ones need."""
        found = wanted & self.tasks
        for step in self.steps:
            users, needs = step.users, step.needs
            if step.chained:
                listed = found.tolist()
                ends = set() if known is None else set(users[known[users]].tolist())
                for user, need in step.pairs():
                    if listed[user] and user not in ends:
                        listed[need] = True
                found[:] = listed
            else:
                found[needs[found[users] if known is None else found[users] & ~known[users]]] = True
        return found

    def up(self, values: Array, take: Any, steps: Array | int = 0) -> Array:
        """Values of what is needed, more by ``steps``, passed on to users, in place."""
        more = np.zeros(len(self.keys), values.dtype) + steps
        plain = PLAIN[take]
        for step in reversed(self.steps):
            users, needs = step.users, step.needs
            if step.chained:
                listed, added = values.tolist(), more.tolist()
                for user, need in Step(users[::-1], needs[::-1]).pairs():
                    listed[user] = plain(listed[user], listed[need] + added[need])
                values[:] = listed
            else:
                take.at(values, users, values[needs] + more[needs])
        return values

    def origins(self) -> tuple[Array, Array]:
        """(keys,) a read that each task is made of, and whether there are several."""
        own = np.arange(len(self.keys))
        made = np.zeros(len(own), bool)
        made[self.links[0]] = True
        least = self.up(np.where(made, len(own), own), np.minimum)
        most = self.up(np.where(made, -1, own), np.maximum)
        return np.minimum(least, len(own) - 1), least < most

    def sizes(self, places: Array, sizes: Sizes) -> Array:
        """Estimated bytes of the results of these keys; each is found once."""
        if self._nbytes is None:
            self._nbytes = np.full(len(self.keys), np.nan)
            for name, grid in self.keys.grids.items():
                start, known = self.keys.starts[name], grid.nbytes()
                end = start + math.prod(grid.shape)
                self._nbytes[start:end] = sizes.other if known is None else known
        todo = places[np.isnan(self._nbytes[places])]
        todo = todo[np.argsort(self.named[todo], kind="stable")]
        for group in np.split(todo, np.flatnonzero(np.diff(self.named[todo])) + 1):
            keys = self.keys_of(group)
            found = sizes.of_chunks(keys)
            self._nbytes[group] = (
                [sizes.of_node(key, self.nodes[key]) for key in keys] if found is None else found
            )
        return np.asarray(self._nbytes[places])

    def slices(self, users: Array, needs: Array) -> Array:
        """Whether each of these users is a slice of what it needs."""
        cuts = np.zeros(len(self.keys), bool)
        for name, grid in self.keys.grids.items():
            if grid.cuts is not None:
                start = self.keys.starts[name]
                cuts[start : start + grid.cuts.size] = grid.cuts.ravel()
        found = cuts[users]
        for i in np.flatnonzero(users >= self.keys.n_grids).tolist():
            cut = slice_of(self.nodes[self.keys.listed[int(users[i]) - self.keys.n_grids]])
            found[i] = cut is not None and cut[0] == self.keys.key(int(needs[i]))
        return found

    def marked(self, keys: Iterable[Key]) -> Array:
        """(keys,) whether each is one of these."""
        found = np.zeros(len(self.keys), bool)
        found[[self.keys.place(key) for key in keys]] = True
        return found

    def keys_of(self, places: Array) -> list[Key]:
        """The keys of these numbers."""
        return [self.keys.key(one) for one in np.asarray(places).tolist()]


def _ranks(users: Array, needs: Array, n_names: int) -> Array:
    """(names,) an order in which users come before what they need; a knot of names has one rank."""
    pairs = scipy.sparse.coo_array((np.ones(len(users)), (users, needs)), shape=(n_names, n_names))
    pairs = pairs.tocsr()
    knots = scipy.sparse.csgraph.connected_components(pairs, connection="strong")[1].tolist()
    order: TopologicalSorter[int] = TopologicalSorter({knot: () for knot in knots})
    for user, need in zip(*(one.tolist() for one in pairs.nonzero()), strict=True):
        if knots[user] != knots[need]:
            order.add(knots[need], knots[user])
    ranks = {one: i for i, one in enumerate(order.static_order())}
    return np.asarray([ranks[knot] for knot in knots], np.int64)


def _chain(users: Array, needs: Array) -> Step:
    """Needs within a layer: users before what they need."""
    if (needs < users).all():  # as Dask makes them
        sort = np.argsort(-users, kind="stable")
        return Step(users[sort], needs[sort], True)
    order: TopologicalSorter[int] = TopologicalSorter()
    for user, need in zip(users.tolist(), needs.tolist(), strict=True):
        order.add(need, user)
    ranks = {one: i for i, one in enumerate(order.static_order())}
    sort = np.argsort([ranks[one] for one in users.tolist()], kind="stable")
    return Step(users[sort], needs[sort], True)


def outline_of(graph: Any) -> Outline:
    """The outline of a graph whose tasks are at hand."""
    keys = Keys((), graph.nodes)
    places = {key: i for i, key in enumerate(keys.listed)}
    users = [places[key] for key in graph.nodes for _ in graph.links[key]]
    needs = [places[need] for key in graph.nodes for need in graph.links[key]]
    values = np.fromiter((known(node) for node in graph.nodes.values()), bool, len(places))
    tasks = np.fromiter((key in graph.needs for key in graph.nodes), bool, len(places))
    links = [np.asarray(one, np.int64) for one in (users, needs)]
    return Outline(keys, links[0], links[1], graph.nodes, tasks, values)
