"""Whether a Dask graph computes, or reads stored chunks and cuts them."""

from __future__ import annotations

from typing import Any

from dask._task_spec import GraphNode, Task, _execute_subgraph
from dask.array.core import getter, getter_inline, getter_nofancy

from streampca.sources.dask_futures import SLICES
from streampca.sources.dask_graph import Graph, Key, layer_of

READS = (getter, getter_nofancy, getter_inline, *SLICES)


def computes(graph: Graph) -> bool:
    """Whether a task may cost more than its bytes tell: anything but plain reads and slices.

    Chunks on a cluster count as well: blocks of few of them are folded where they lie. The tasks of
    a layer are alike, and one of each is looked at.
    """
    seen: set[Key] = set()
    for key in graph.needs:
        if (layer := layer_of(key)) not in seen:
            seen.add(layer)
            if not _reads(graph.nodes[key]):
                return True
    return False


def _reads(node: Any) -> bool:
    """Whether a node is a plain read, a slice, another name, or several of them fused."""
    if isinstance(node, Task):
        if node.func is _execute_subgraph:
            return all(map(_reads, node.args[0].values()))
        return node.func in READS
    if isinstance(node, GraphNode):
        return True
    return not (type(node) is tuple and node and callable(node[0])) or node[0] in READS
