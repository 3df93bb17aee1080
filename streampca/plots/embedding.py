"""Pictures of embeddings: rows laid out by their neighbours, with what these cannot say."""

from __future__ import annotations

import base64
import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.html import text
from streampca.plots.canvas import MUTED, PALETTE, drawing_axes, state
from streampca.plots.colours import colouring
from streampca.plots.presented import refuse_other
from streampca.plots.scores import MOST_POINTS, RASTERIZED_FROM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALL_PRINT = (
    "Axes have no meaning. Cluster sizes have no meaning. "
    "Distances between clusters have no meaning."
)


def embedding(result: Any, *, labels: Any = None, ax: Axes | None = None) -> Axes:
    """The rows of an embedding, with its warnings and what it keeps of the neighbourhoods.

    result : what ``streampca.embed`` returned.
    labels : (n,) one per row, as :func:`scores` takes them.

    Of more than 200,000 rows a fixed sample is drawn; the title says so.
    Raises InvalidInputError, InvalidTypeError; MissingDependencyError.

    Examples
    --------
    >>> from streampca import embed, plots
    >>> plots.embedding(embed("cells.zarr"), labels=clusters)  # doctest: +SKIP
    """
    refuse_other(result, "embedding", "streampca.embed(X)")
    points = np.asarray(result.coordinates).T
    n = points.shape[1]
    colours = None if labels is None else colouring(labels, result.samples)
    random = np.random.default_rng(0)
    order = random.choice(n, min(n, MOST_POINTS), replace=False)  # shuffled: no group on top
    drawn = drawing_axes(ax, (6.4, 5.4))
    root = np.sqrt(len(order))
    style: dict[str, Any] = {
        "s": float(np.clip(300.0 / root, 0.6, 20.0)),
        "alpha": float(np.clip(40.0 / root, 0.3, 0.85)),
        "linewidths": 0,
        "rasterized": len(order) > RASTERIZED_FROM,
    }
    if colours is None:
        drawn.scatter(*points[:, order], color=PALETTE[0], **style)
    else:
        colours.take(order).draw(drawn, points[:, order], style)
    drawn.set_aspect("equal", adjustable="datalim")
    drawn.set(xticks=[], yticks=[])
    for spine in drawn.spines.values():
        spine.set_visible(False)
    state(drawn, _title(result, len(order)))
    drawn.set_xlabel(small_print(result), color=MUTED, fontsize=7, loc="left")
    return drawn


def small_print(result: Any) -> str:
    """The warnings, and the figures of the judgement, in two lines."""
    seen = result.quality
    return (
        f"{SMALL_PRINT}\nOf {seen.n_neighbors} neighbours {100 * seen.knn_preservation:.2g} % are "
        f"kept ({100 * seen.chance:.2g} % by chance); trustworthiness {seen.trustworthiness:.3f}."
    )


def embedding_page(result: Any, path: str | os.PathLike[str], *, labels: Any = None) -> None:
    """Write the picture as one HTML file that needs no network, with a text for it.

    Examples
    --------
    >>> from streampca import embed, plots
    >>> plots.embedding_page(embed("cells.zarr"), "cells.html")  # doctest: +SKIP
    """
    found = io.BytesIO()
    figure: Any = embedding(result, labels=labels).get_figure()
    figure.savefig(found, dpi=150, bbox_inches="tight")
    title = text(_title(result, len(result.coordinates)))
    image = base64.b64encode(found.getvalue()).decode("ascii")
    rows = "".join(f"<li>{text(line)}</li>" for line in repr(result).splitlines())
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
        "padding:0 1rem}img{max-width:100%}li{white-space:pre-wrap;font-size:.85em}</style>"
        f'<h1>{title}</h1><img alt="{title}. {text(small_print(result))}" '
        f'src="data:image/png;base64,{image}"><ul>{rows}</ul></html>\n'
    )
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(page)


def _title(result: Any, shown: int) -> str:
    n = len(result.coordinates)
    what = f"{result.method}: {n:,} rows on {result.scores.shape[1]} components, seed {result.seed}"
    return what if shown == n else f"{what}; {shown:,} drawn"
