"""Looks through layers of a Dask graph that change nothing but the chunks.

``x.rechunk(...)`` has the values of ``x``. Read by the chunks of ``x``, no chunk is shared by
strips. Elementwise operations above a rechunk are applied to the chunks below it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from dask._task_spec import Alias, GraphNode, TaskRef
from dask.array import Array
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from streampca.sources.dask.graph import Chunks, annotated, array_operands
from streampca.sources.dask.lazy_layers import Rechunk

OPERATORS = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.neg,
    operator.pos,
    operator.abs,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.invert,
    operator.lt,
    operator.le,
    operator.eq,
    operator.ne,
    operator.gt,
    operator.ge,
)
FUNCTIONS = (np.where, np.clip, np.round, np.nan_to_num, np.real, np.transpose)
OF_DASK = {"astype", "clip", "where", "nan_to_num", "_enforce_dtype"}  # in dask.array


def looked_through(array: Any) -> Any:
    """The same values in the chunks below; the array itself where Dask does not say enough.

    A rechunk between workers (p2p) that is still needed becomes one by tasks.
    Cost: of a few layers, whatever the number of chunks.
    """
    graph = array.__dask_graph__()
    if not isinstance(graph, HighLevelGraph):
        return _expression_below(array)
    layers = _Layers(graph)
    below = layers.below(array.name, array.chunks)
    if below is not None and all(len(sizes) == 1 for sizes in below[1]):
        below = None  # one chunk would be one block
    name, chunks = below or (array.name, array.chunks)
    if layers.replace_p2p(name) | layers.tell_rechunks(name) or below is not None:
        return Array(layers.graph(name), name, chunks, meta=array._meta, dtype=array.dtype)
    return array


def _expression_below(array: Any) -> Any:
    """The same for an array that Dask keeps as an expression: a rechunk at the top.

    The array's name is then that of its keys in the graph.
    """
    while type(getattr(array, "expr", None)).__name__ in ("Rechunk", "TasksRechunk"):
        lower = getattr(array.expr, "array", None)
        if lower is None or tuple(lower.shape) != tuple(array.shape):
            break
        array = type(array)(lower)
    if hasattr(array, "expr"):
        array = type(array)(array.expr.lower_completely())
    return array


class _Layers:
    """The layers of a graph, and those made in place of some of them."""

    def __init__(self, graph: HighLevelGraph) -> None:
        self.layers: dict[str, Any] = dict(graph.layers)
        self.needs: dict[str, set[str]] = {k: set(v) for k, v in graph.dependencies.items()}

    def graph(self, name: str) -> HighLevelGraph:
        """The layers that one of them needs."""
        needed = self._needed(name)
        return HighLevelGraph(
            {k: self.layers[k] for k in needed}, {k: self.needs[k] for k in needed}
        )

    def _needed(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        todo = [name]
        while todo:
            one = todo.pop()
            if one not in found:
                found[one] = None
                todo.extend(self.needs[one])
        return list(found)

    def below(self, name: str, chunks: Chunks) -> tuple[str, Chunks] | None:
        """An array of the same values in the chunks below a rechunk; None where there is none."""
        layer, source = self.layers.get(name), self._rechunked(name)
        if source is not None:
            said = annotated(self.layers[source])
            if said is None or _shape(said[0]) != _shape(chunks):
                return None
            return self.below(source, said[0]) or (source, said[0])
        if isinstance(layer, Blockwise) and _is_elementwise(layer):
            return self._elementwise(name, layer, chunks)
        return None

    def _rechunked(self, name: str) -> str | None:
        """What a layer rechunks, if that is what it does."""
        layer: Any = self.layers.get(name)
        if _is_p2p(layer):
            return str(layer.name_input) if layer.name_input in self.layers else None
        if name.startswith("rechunk-merge-") and len(self.needs[name]) == 1:
            return next(iter(self.needs[name]))
        return None

    def _elementwise(
        self, name: str, layer: Blockwise, chunks: Chunks
    ) -> tuple[str, Chunks] | None:
        """The operation on the chunks below one of its operands, to which others are rechunked."""
        arrays = array_operands(layer)
        said = {arg: annotated(self.layers.get(arg)) for arg in arrays}
        known = {arg: value for arg, value in said.items() if value is not None}
        if len(known) < len(arrays):
            return None
        own = dict(zip(layer.output_indices, chunks, strict=True))
        if any(
            have not in (own[i], (1,))  # aligned by the numbers of blocks, not by their rows
            for arg, index in arrays.items()
            for have, i in zip(known[arg][0], index, strict=True)
        ):
            return None
        sizes = dict(zip(layer.output_indices, _shape(chunks), strict=True))
        whole = [
            arg
            for arg, index in arrays.items()
            if dict(zip(index, _shape(known[arg][0]), strict=False)) == sizes
        ]
        lower = {arg: self.below(arg, known[arg][0]) for arg in whole}
        if not whole or None in lower.values():
            return None
        (_, fresh), index = lower[whole[0]], arrays[whole[0]]  # type: ignore[misc]
        wanted = dict(zip(index, fresh, strict=True))
        found = tuple(wanted[i] for i in layer.output_indices)
        names = {}
        for arg, index in arrays.items():
            one, old = lower.get(arg) or (arg, known[arg][0])
            new = tuple(
                sizes if sum(sizes) == 1 != sum(wanted[i]) else wanted[i]
                for sizes, i in zip(old, index, strict=True)
            )
            names[arg] = self._rechunk(one, old, new, known[arg][1])
        made = self._applied(name, layer, names)
        dtype = (layer.collection_annotations or {}).get("dtype")
        self.layers[made].collection_annotations = {"chunks": found, "dtype": dtype}
        return made, found

    def _applied(self, name: str, layer: Blockwise, names: Mapping[str, str]) -> str:
        """A layer that does the same to other operands; its name."""
        indices = [
            (arg if index is None else names[str(arg)], index) for arg, index in layer.indices
        ]
        counts = {}
        for one in names.values():
            said = annotated(self.layers[one])
            counts[one] = tuple(map(len, said[0])) if said is not None else ()
        made = f"through-{name}"
        self.layers[made] = Blockwise(
            made, layer.output_indices, layer.task, indices, counts, annotations=layer.annotations
        )
        literals = {getattr(arg, "key", None) for arg, index in indices if index is None}
        self.needs[made] = {*names.values(), *(key for key in literals if key in self.layers)}
        return made

    def _rechunk(self, name: str, chunks: Chunks, wanted: Chunks, dtype: np.dtype[Any]) -> str:
        """The array in other chunks, by tasks; its layers are added."""
        if chunks == wanted:
            return name
        if Rechunk.fits(chunks, wanted):
            layer = Rechunk(name, chunks, wanted, dtype)
            self.layers[layer.own], self.needs[layer.own] = layer, {name}
            return layer.own
        array = Array(self.graph(name), name, chunks, dtype=dtype)
        made = array.rechunk(wanted, method="tasks")
        for one in made.dask.layers:
            if one not in self.layers:
                self.layers[one] = made.dask.layers[one]
                self.needs[one] = set(made.dask.dependencies[one])
        return str(made.name)

    def replace_p2p(self, name: str) -> bool:
        """Rechunk by tasks what an array needs rechunked between workers. Whether there was any."""
        between = [one for one in self._needed(name) if _is_p2p(self.layers[one])]
        for one in between:
            layer, said = self.layers[one], annotated(self.layers[one])
            dtype = said[1] if said is not None else np.dtype("f8")
            made = self._rechunk(layer.name_input, layer.chunks_input, layer.chunks, dtype)
            numbers = product(*(range(len(sizes)) for sizes in layer.chunks))
            self.layers[one] = MaterializedLayer(
                {(one, *n): Alias((one, *n), (made, *n)) for n in numbers},
                collection_annotations=layer.collection_annotations,
            )
            self.needs[one] = {made}
        return bool(between)

    def tell_rechunks(self, name: str) -> bool:
        """Tell by arithmetic the rechunks whose tasks Dask has listed. Whether there was any."""
        found = False
        for one in self._needed(name):
            layer, source = self.layers[one], self._rechunked(one)
            if source is None or not isinstance(layer, MaterializedLayer):
                continue
            new, old = annotated(layer), annotated(self.layers.get(source))
            if new is None or old is None or _shape(new[0]) != _shape(old[0]):
                continue
            if Rechunk.fits(old[0], new[0]):
                self.layers[one], found = Rechunk(source, old[0], new[0], new[1], one), True
        return found


def _is_p2p(layer: Any) -> bool:
    return type(layer).__name__ == "P2PRechunkLayer" and hasattr(layer, "chunks_input")


def _is_elementwise(layer: Blockwise) -> bool:
    """Whether each value of the result is made of the values at the same place, or broadcast."""
    outer = layer.output_indices
    if layer.new_axes or layer.io_deps or len(set(outer)) != len(outer):
        return False
    arrays = array_operands(layer)
    function, named = layer.task.func, layer.task.kwargs
    for arg, index in layer.indices:
        if index is None:
            if _may_be_a_block(arg):
                return False
            continue
        if function is np.transpose:
            axes = named.get("axes") or tuple(reversed(range(len(index))))
            if len(arrays) != 1 or tuple(index[axis] for axis in axes) != tuple(outer):
                return False
        elif tuple(index) != tuple(outer[len(outer) - len(index) :]):  # as NumPy broadcasts
            return False
        if arrays[str(arg)] != index:
            return False
    if any(_may_be_a_block(value) for name, value in named.items() if name != "axes"):
        return False
    return _works_elementwise(function, named)


def _may_be_a_block(value: Any) -> bool:
    """Whether an argument that is no array may have the shape of a block."""
    return isinstance(value, GraphNode | TaskRef) or np.ndim(value) > 0


def _works_elementwise(function: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(function, np.ufunc):
        return function.signature is None
    if any(function is one for one in (*OPERATORS, *FUNCTIONS)):
        return True
    of_dask = str(getattr(function, "__module__", "")).startswith("dask.array")
    if not of_dask or getattr(function, "__name__", "") not in OF_DASK:
        return False
    inner = named.get("enforce_dtype_function")
    return inner is None or _works_elementwise(inner, {})


def _shape(chunks: Chunks) -> tuple[int, ...]:
    return tuple(map(sum, chunks))
