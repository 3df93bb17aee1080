"""Components that one short stretch of the genome makes: linkage, an inversion, or an artefact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from streampca.kernels import Array
from streampca.matrix.text import as_text, numbered

WINDOW = 4_000_000  # base pairs
SHARE = 0.25  # of a component's squared loadings in one window
TIMES = 5  # and so many times its share of the variants


@dataclass(frozen=True)
class LocalComponent:
    """A component (0 = the first) of which a window holds an outsized share."""

    component: int
    chromosome: str
    start: int
    stop: int
    share: float

    def __str__(self) -> str:
        return (
            f"PC{self.component + 1}: {self.share:.0%} in chr{self.chromosome}:"
            f"{self.start / 1e6:.3g}-{self.stop / 1e6:.3g} Mb"
        )


def local_components(
    components: Iterable[Array], chromosome: Array, position: Array, window: int = WINDOW
) -> list[LocalComponent]:
    """Components whose squared loadings concentrate in one window of the genome.

    components : k unit rows of (p,).  chromosome, position : (p,).  window : base pairs.
    A window counts where it holds over a quarter of the squared loadings and five times its share
    of the variants. Cost: one sort of p, and O(k p).
    """
    _, code = numbered(as_text(chromosome))
    order = np.lexsort((position, code))
    code, place = code[order], np.asarray(position, dtype=np.int64)[order]
    line = code * (int(place.max(initial=0)) + 2 * window) + place  # chromosomes far apart
    first = np.searchsorted(line, line - window, side="left")
    found = []
    for i, v in enumerate(components):
        weight = np.concatenate([[0.0], np.cumsum(v[order] ** 2)])
        inside = weight[1:] - weight[first]
        last = int(np.argmax(inside))
        begin, share = int(first[last]), float(inside[last] / max(weight[-1], 1e-300))
        if share > SHARE and share > TIMES * (last - begin + 1) / len(line):
            begin, last = _tight(weight, begin, last)
            name = str(np.asarray(chromosome)[order[last]])
            found.append(LocalComponent(i, name, int(place[begin]), int(place[last]), share))
    return found


def _tight(weight: Array, begin: int, last: int) -> tuple[int, int]:
    """The part of a window that holds all but 2 % of its weight, 1 % on each side."""
    inside = weight[last + 1] - weight[begin]
    low = int(np.searchsorted(weight, weight[begin] + 0.01 * inside, side="right")) - 1
    high = int(np.searchsorted(weight, weight[last + 1] - 0.01 * inside, side="left")) - 1
    return max(begin, low), min(last, max(low, high))
