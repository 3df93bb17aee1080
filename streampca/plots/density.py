"""Very many points as one image, and ellipses around groups of points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.plots.canvas import INK, PALETTE, outlined
from streampca.plots.colours import Categories, Continuous

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
CELLS = (480, 360)  # along x and y
FAINTEST = 0.35  # opacity of a cell with one point: single samples stay visible
CHI2_95 = 5.991464547107979  # 95 % quantile of chi-squared with two degrees of freedom


def draw_density(
    ax: Axes, points: Array, colours: Categories | Continuous | None, key: bool = True
) -> None:
    """Draw (2, n) points as an image; opacity is the logarithm of their number in a cell.

    key : whether to draw the legend or the colourbar.

    A cell of several categories has the mean of their colours, weighted by their numbers; of
    values that are coloured along a scale, their mean.
    Cost: one pass over the points for each category; 12 MB.
    """
    low, high = _limits(points)
    inside = np.asarray(np.isfinite(points).all(axis=0))
    cell = _cells(points[:, inside], low, high)
    counts = np.bincount(cell, minlength=CELLS[0] * CELLS[1]).astype(np.float64)
    image = np.zeros((len(counts), 4))
    image[:, :3] = _colour_of_cells(cell, counts, colours, inside)
    most = np.log1p(counts.max(initial=1.0))
    strength = FAINTEST + (1 - FAINTEST) * np.log1p(counts) / most
    image[:, 3] = np.where(counts > 0, strength, 0.0)
    ax.imshow(
        image.reshape(CELLS[1], CELLS[0], 4),
        extent=(low[0], high[0], low[1], high[1]),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=1,
    )
    if key and isinstance(colours, Categories):
        colours.draw_legend(ax, markers=False)
    elif key and isinstance(colours, Continuous):
        colours.draw_bar(ax, _scale_of(cell, colours.values[inside])[1], 2)


def _limits(points: Array) -> tuple[Array, Array]:
    """The corners of the image, a little beyond the points."""
    low, high = np.nanmin(points, axis=1), np.nanmax(points, axis=1)
    room = np.where(high > low, 0.03 * (high - low), 0.5)
    return low - room, high + room


def _cells(points: Array, low: Array, high: Array) -> Array:
    """(n,) the number of the cell of each point."""
    scale = np.array(CELLS) / (high - low)
    column, row = (
        np.minimum(((points[d] - low[d]) * scale[d]).astype(np.int64), CELLS[d] - 1) for d in (0, 1)
    )
    return np.asarray(row * CELLS[0] + column)


def _colour_of_cells(
    cell: Array, counts: Array, colours: Categories | Continuous | None, inside: Array
) -> Array:
    """(cells, 3) mean colour of the points of each."""
    from matplotlib.colors import to_rgb

    filled = np.maximum(counts, 1.0)[:, None]
    if colours is None:
        return np.broadcast_to(to_rgb(PALETTE[0]), (len(counts), 3))
    if isinstance(colours, Categories):
        codes, total = colours.codes[inside], np.zeros((len(counts), 3))
        for code in np.unique(codes):
            own = np.bincount(cell[codes == code], minlength=len(counts))
            total += own[:, None] * np.array(to_rgb(colours.colour(int(code))))
        return np.asarray(total / filled)
    mean, drawn = _scale_of(cell, colours.values[inside])
    return np.asarray(drawn.to_rgba(mean)[:, :3])


def _scale_of(cell: Array, values: Array) -> tuple[Array, Any]:
    """(cells,) the mean value in each, and the colour scale of them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    known, cells = np.isfinite(values), CELLS[0] * CELLS[1]
    total = np.bincount(cell[known], weights=values[known], minlength=cells)
    number = np.bincount(cell[known], minlength=cells)
    mean = np.divide(total, number, out=np.full(cells, np.nan), where=number > 0)
    shown = mean[number > 0]
    limits = (shown.min(), shown.max()) if len(shown) else (0.0, 1.0)
    return mean, ScalarMappable(Normalize(*limits), Continuous.colours())


MOST_ELLIPSES = 100  # of single points


def draw_uncertainty(ax: Axes, points: Array, covariances: Array) -> None:
    """The ellipse in which 95 % of samples place each point; of many points, of a fixed sample.

    points : (2, n).  covariances : (n, 2, 2).
    """
    from matplotlib.collections import EllipseCollection

    chosen = np.arange(points.shape[1])
    if len(chosen) > MOST_ELLIPSES:
        chosen = np.sort(np.random.default_rng(0).choice(chosen, MOST_ELLIPSES, replace=False))
    values, vectors = np.linalg.eigh(covariances[chosen])
    lengths = 2 * np.sqrt(CHI2_95 * np.maximum(values, 0.0))
    angles = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
    drawn = EllipseCollection(
        lengths[:, 1],
        lengths[:, 0],
        angles,
        units="xy",
        offsets=points[:, chosen].T,
        offset_transform=ax.transData,
        facecolors="none",
        edgecolors=INK,
        linewidths=0.5,
        alpha=0.5,
        zorder=2.5,
    )
    ax.add_collection(drawn)


def draw_ellipses(ax: Axes, points: Array, groups: Categories) -> None:
    """The ellipse of each category that holds 95 % of a normal distribution, and its name.

    Categories of fewer than 3 points have none.
    """
    from matplotlib.patches import Ellipse

    for code, name in enumerate(groups.names):
        own = points[:, groups.codes == code]
        own = own[:, np.isfinite(own).all(axis=0)]
        if own.shape[1] < 3:
            continue
        values, vectors = np.linalg.eigh(np.cov(own))
        width, height = 2 * np.sqrt(CHI2_95 * np.maximum(values[::-1], 0.0))
        angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        centre = own.mean(axis=1)
        ax.add_patch(
            Ellipse(
                tuple(centre),
                width,
                height,
                angle=angle,
                fill=False,
                linewidth=1.4,
                edgecolor=groups.colour(code),
                zorder=3,
            )
        )
        ax.annotate(
            name,
            (centre[0], centre[1] + np.sqrt(CHI2_95 * np.cov(own)[1, 1])),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            zorder=4,
            color=INK,
            fontsize="small",
            path_effects=outlined(),
            parse_math=False,
        )
