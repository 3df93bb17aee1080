"""Pictures of features: their loadings by size and along the genome, biplot, correlation circle.

Also of texts: documents among their terms.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import AxisLabels
from streampca.matrix.places import genome_of
from streampca.models.text.lsa_result import LSADecomposition
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    at_most,
    checked_axes,
    component_index,
    drawing_axes,
    state,
)
from streampca.plots.colours import MOST_CATEGORIES
from streampca.plots.samples import column_of, has_scores
from streampca.plots.scores import scores as draw_scores
from streampca.plots.subjects import (
    Subject,
    component_name,
    correlations_of,
    has_correlations,
    is_pair,
    loadings_of,
    result_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]

# Loadings: the weights of the features in a component.

LONGEST_NAME = 40  # characters beside a bar; the table has full names


def loadings(
    result: Any, *, component: int = 1, n: int = 15, view: str | None = None, ax: Axes | None = None
) -> Axes:
    """The features with the largest |loading| on one component, as horizontal bars.

    result : a fitted estimator or a Decomposition.  view : "x" (None) or "y" of a model of two
        views, whose loadings are correlations of features with the scores of their view.
    component : its number, from 1.  n : how many features, or all if there are fewer.

    A loading is the component's entry times the square root of its variance, in the units of the
    feature (a correlation, if the features were scaled to unit variance).
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Jolliffe 2002, "Principal Component Analysis", 2nd ed., section 2.3.
    """
    found = result_of(result, view)
    index = component_index(component, found)
    count = at_most(n, found.n_features, "features")
    names, values = _largest(found, index, count)
    checked_axes(ax)

    drawn = drawing_axes(ax, (6.0, 1.0 + 0.24 * count))
    drawn.grid(axis="x", color=FAINT, linewidth=0.7)
    places = np.arange(count)
    colours = [PALETTE[0] if value >= 0 else PALETTE[4] for value in values]
    drawn.barh(places, values, height=0.7, color=colours)
    drawn.axvline(0.0, color=MUTED, linewidth=0.8)
    drawn.set_yticks(places, labels=[_short(name) for name in names], parse_math=False)
    drawn.tick_params(axis="y", length=0)
    drawn.spines["left"].set_visible(False)
    drawn.set_ylim(count - 0.4, -0.6)  # the largest on top
    what = found.loading if isinstance(found, Subject) else "Loading on"
    drawn.set_xlabel(f"{what} {component_name(index, found)}")
    name = component_name(index, found).split(" (")[0]
    state(drawn, f"The {count} largest of {found.n_features:,} loadings on {name}")
    return drawn


def loadings_table(result: Any, n: int = 10, *, view: str | None = None) -> np.ndarray[Any, Any]:
    """The features with the largest |loading| on every component, as a structured array.

    result, view : as for :func:`loadings`.  n : features per component.

    Returns (k * n,) rows of ``component`` (from 1), ``rank`` (from 1), ``feature`` (its name) and
    ``loading``; ``pandas.DataFrame(table)`` takes it as it is.
    Raises InvalidInputError, InvalidTypeError, NotFittedError.
    """
    found = result_of(result, view)
    count = at_most(n, found.n_features, "features")
    rows = [
        (index + 1, rank, name, value)
        for index in range(found.n_components)
        for rank, (name, value) in enumerate(zip(*_largest(found, index, count), strict=True), 1)
    ]
    width = max((len(row[2]) for row in rows), default=1)
    columns = [
        ("component", np.int64),
        ("rank", np.int64),
        ("feature", f"U{max(width, 1)}"),
        ("loading", np.float64),
    ]
    return np.array(rows, dtype=columns)


def _largest(found: Any, index: int, count: int) -> tuple[list[str], list[float]]:
    """Names and loadings of one component, without forming all (p, k) loadings."""
    column = loadings_of(found, index)
    order = np.argsort(-np.abs(column), kind="stable")[:count]
    return found.labels.features.shown(order.tolist()), column[order].tolist()


def _short(name: str) -> str:
    """Shorten a name in the middle: names that differ only in a number differ at an end."""
    if len(name) <= LONGEST_NAME:
        return name
    tail = LONGEST_NAME // 2
    return f"{name[: LONGEST_NAME - tail - 1]}…{name[-tail:]}"


# Loadings along the genome.

RASTER = (4000, 1000)  # cells along x and y in which one point hides others
LABELLED = 26  # chromosomes with a name each
WIDTH = 0.012  # of a letter beside an arrow, as a share of the picture
LEAST_ARROW = 0.15  # of the longest: shorter ones would only cover the centre


def manhattan(
    result: Any, *, component: int = 1, view: str | None = None, ax: Axes | None = None
) -> Axes:
    """|Loading| of every variant on one component, along the genome, chromosome by chromosome.

    result : a fitted estimator or a Decomposition of variants with chromosome and position
        (PLINK, VCF Zarr).  component : its number, from 1.  view : as for :func:`loadings`.

    A component of ancestry is spread over the genome; a peak is one region: an inversion, a long
    stretch of linkage, or an artefact. The title names the highest, and the share of the squared
    loadings within 1 % of the variants.
    Cost: seconds for a million variants; of points that hide each other one is drawn.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    """
    found = result_of(result, view)
    index = component_index(component, found)
    axis = found.labels.features
    genome = genome_of(axis)
    if genome is None:
        raise InvalidInputError(
            "the features have no chromosomes and positions, as those of PLINK files and VCF Zarr "
            "do; plots.loadings(model) shows the largest loadings of any features"
        )
    values = np.abs(loadings_of(found, index))
    checked_axes(ax)
    drawn = drawing_axes(ax, (10.0, 3.6))
    drawn.grid(axis="y", color=FAINT, linewidth=0.7)
    shown = _visible(genome.place, values)
    colours = np.array([PALETTE[0], "#7a7a7a"])[genome.number[shown] % 2]
    drawn.scatter(
        genome.place[shown],
        values[shown],
        s=4,
        c=colours,
        linewidths=0,
        rasterized=len(shown) > 2000,
    )
    few = len(genome.names) <= LABELLED
    ticks = range(len(genome.names)) if few else range(0, len(genome.names), 5)
    drawn.set_xticks(genome.centres[ticks], labels=[genome.names[i] for i in ticks])
    drawn.tick_params(axis="x", length=0)
    drawn.margins(x=0.01)
    drawn.set_ylim(bottom=0.0)
    drawn.set_xlabel("Chromosome")
    drawn.set_ylabel(f"|Loading| on PC{index + 1}")
    top, squares = int(np.argmax(values)), np.sort(values**2)[::-1]
    most = squares[: max(1, len(squares) // 100)].sum() / max(squares.sum(), np.finfo(float).tiny)
    state(
        drawn,
        f"PC{index + 1}: 1 % of {len(values):,} variants hold {100 * most:.0f} % of the "
        f"squared loadings; the largest is {axis.name(top)} on "
        f"chromosome {genome.names[genome.number[top]]}",
    )
    return drawn


def _visible(x: Array, y: Array) -> Array:
    """One point of each cell of a fine raster: the picture of all of them."""
    columns = (x / max(x.max(initial=1.0), 1.0) * (RASTER[0] - 1)).astype(np.int64)
    height = float(y.max(initial=0.0)) or 1.0
    rows = (y / height * (RASTER[1] - 1)).astype(np.int64)
    return np.unique(columns * RASTER[1] + rows, return_index=True)[1]


# Features as arrows: over the samples, and in the unit circle.


def biplot(
    result: Any,
    scores: Any = None,
    *,
    components: Sequence[int] = (1, 2),
    n: int = 10,
    labels: Any = None,
    view: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Samples as points and the n features that weigh most as arrows, on two components.

    result : a fitted estimator or a Decomposition.  scores, labels : as for ``plots.scores``.
    view : "x" (None) or "y" of a model of two views.

    Arrows are loadings, all multiplied by one number so that they fill the picture: their
    directions and relative lengths mean something, their length beside a score does not.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    Source: Gabriel 1971, "The biplot graphic display of matrices", Biometrika 58(3).
    """
    found = has_scores(result_of(result, view))
    if len(components) != 2:
        raise InvalidInputError(f"components={tuple(components)}; expected two numbers: (1, 2)")
    indices = [component_index(number, found) for number in components]
    count = at_most(n, found.n_features, "features")
    arrows = np.stack([loadings_of(found, index) for index in indices])
    own = (view or "x") if is_pair(result) else None
    drawn = draw_scores(result, scores, components=components, labels=labels, view=own, ax=ax)
    draw_features(drawn, arrows, found.labels.features, count)
    state(
        drawn, f"Samples, and the {count} features of {found.n_features:,} with the longest arrows"
    )
    return drawn


def draw_features(ax: Axes, arrows: Array, axis: AxisLabels, count: int) -> None:
    """The longest of (2, p) arrows over a picture of samples, stretched so that they fill it."""
    chosen = _longest(arrows, count)
    reach = np.array([max(map(abs, limit)) for limit in (ax.get_xlim(), ax.get_ylim())])
    longest = np.abs(arrows[:, chosen]).max(axis=1)
    stretch = 0.85 * float(np.min(reach / np.where(longest > 0, longest, np.inf), initial=np.inf))
    _draw_arrows(ax, stretch * arrows[:, chosen], axis.shown(chosen.tolist()))


def correlation_circle(
    result: Any,
    *,
    components: Sequence[int] = (1, 2),
    n: int = 20,
    view: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Correlations of the features with two components, in the unit circle.

    result : a fitted estimator or a Decomposition.  n : how many names; other features are points.
    view : "x" (None) or "y" of a model of two views.

    A feature near the circle is described by these two components almost entirely; near the centre
    by others.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    Source: Abdi and Williams 2010, "Principal component analysis", WIREs Comp. Stat. 2, p. 438.
    """
    found = has_correlations(result_of(result, view))
    if len(components) != 2:
        raise InvalidInputError(f"components={tuple(components)}; expected two numbers: (1, 2)")
    indices = [component_index(number, found) for number in components]
    arrows = np.stack([correlations_of(found, index) for index in indices])
    count = at_most(n, found.n_features, "features")
    checked_axes(ax)
    drawn = drawing_axes(ax, (5.6, 5.6))
    turn = np.linspace(0, 2 * np.pi, 181)
    drawn.plot(np.cos(turn), np.sin(turn), color=MUTED, linewidth=1.0)
    drawn.axhline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    drawn.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    shown = _longest(arrows, 20_000)
    drawn.scatter(
        arrows[0, shown],
        arrows[1, shown],
        s=6,
        color=PALETTE[5],
        linewidths=0,
        alpha=0.6,
        rasterized=len(shown) > 2000,
    )
    chosen = shown[:count]
    _draw_arrows(drawn, arrows[:, chosen], found.labels.features.shown(chosen.tolist()))
    drawn.set_aspect("equal")
    drawn.set_xlim(-1.25, 1.25)
    drawn.set_ylim(-1.25, 1.25)
    drawn.set_xlabel(f"Correlation with {component_name(indices[0], found)}")
    drawn.set_ylabel(f"Correlation with {component_name(indices[1], found)}")
    known = int(((arrows**2).sum(axis=0) > 0.5).sum())
    state(
        drawn,
        f"{known:,} of {found.n_features:,} features have more than half of their "
        "variance in these two components",
    )
    return drawn


def _longest(arrows: Array, count: int) -> Array:
    """The numbers of the longest of (2, p) arrows, the longest first."""
    return np.argsort(-(arrows**2).sum(axis=0), kind="stable")[:count]


def _draw_arrows(ax: Axes, tips: Array, names: list[str]) -> None:
    """Arrows from the centre; names stand beyond the tips, and move apart where they meet."""
    from matplotlib.patheffects import withStroke

    lengths = np.linalg.norm(tips, axis=0)
    long = lengths >= LEAST_ARROW * lengths.max(initial=0.0)
    span = np.array([np.ptp(ax.get_xlim()), np.ptp(ax.get_ylim())])
    line = 0.035 * span[1]
    taken: list[tuple[float, float, float]] = []  # names: left, right, height
    ends = [*np.array([ax.get_xlim(), ax.get_ylim()]).T]  # what the picture must reach
    named = sorted(
        zip(tips.T[long], compress(names, long), strict=True), key=lambda x: abs(x[0][1])
    )
    for tip, name in named:  # names that move outwards stay in the order of their tips
        ax.annotate(
            "",
            tuple(tip),
            (0.0, 0.0),
            zorder=3,
            arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.9},
        )
        place = tip + 0.02 * span * np.sign(tip)
        far = place[0] + np.copysign(WIDTH * span[0] * len(_short(name)), tip[0])
        left, right, first = min(place[0], far), max(place[0], far), place[1]
        while any(left < b and a < right and abs(place[1] - y) < line for a, b, y in taken):
            place[1] += np.copysign(line, tip[1])
        if place[1] != first:
            ax.plot(*np.stack([tip, place], 1), color=MUTED, linewidth=0.6, zorder=3)
        taken.append((left, right, place[1]))
        ends.append(np.array([far, place[1]]))
        ax.annotate(
            _short(name),
            tuple(tip),
            tuple(place),
            ha="left" if tip[0] >= 0 else "right",
            va="center",
            color=INK,
            fontsize="small",
            zorder=4,
            annotation_clip=False,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            parse_math=False,
        )
    low, high = np.min(ends, axis=0), np.max(ends, axis=0)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1] - line / 2, high[1] + line / 2))


# Documents among their terms.

FEW = 30  # documents whose names are drawn


def texts(
    model: Any,
    *,
    components: Sequence[int] | None = None,
    n: int = 12,
    labels: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Documents as points and the n terms that weigh most as arrows, on two factors of an LSA.

    model : a fitted :class:`streampca.LSA`, or its ``result_``.
    components : two numbers, from 1. None takes 2 and 3 where there are three: counts are not
        centred, so that the first factor is mostly how long a document is.
    labels : (documents,) as for :func:`scores`. None takes the folders of the files, where they
        lie in 2 to 36.

    Documents lie at U S. Terms are V S, all multiplied by one number so that they fill the
    picture: a document lies in the direction of its terms. Up to 30 documents are named.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    Source: Deerwester et al. 1990, JASIS 41(6), figure 1.
    """
    found = result_of(model)
    if not isinstance(found, LSADecomposition):
        raise InvalidTypeError(
            f"got a model by {found.method}; expected a fitted LSA: streampca.LSA().fit(texts)"
        )
    if components is None:
        components = (2, 3) if found.n_components > 2 else (1, 2)
    if len(components) != 2:
        raise InvalidInputError(f"components={tuple(components)}; expected two numbers: (2, 3)")
    indices = [component_index(number, found) for number in components]
    points = np.stack([column_of(found.document_coordinates, index) for index in indices])
    count = at_most(n, found.n_features, "terms")
    drawn = draw_scores(
        found,
        found.document_coordinates,
        components=components,
        ax=ax,
        labels=_folders(found) if labels is None else labels,
    )
    draw_features(drawn, found.term_coordinates[:, indices].T, found.labels.features, count)
    if found.n_documents <= FEW:
        _name_documents(drawn, points, found.labels.samples.names())
    drawn.set_xlabel(component_name(indices[0], found, "Factor "))
    drawn.set_ylabel(component_name(indices[1], found, "Factor "))
    held = f"{found.explained_variance_ratio[indices].sum():.1%}".replace("%", " %")
    state(
        drawn,
        f"{found.n_documents:,} documents, and {count} of {found.n_features:,} terms, on "
        f"factors that hold {held} of the squared length",
    )
    return drawn


def _folders(found: LSADecomposition) -> list[str] | None:
    """The folder of each document, or None where they are not in a few of them."""
    if not found.labels.samples.named:
        return None
    folders = [os.path.dirname(name) for name in found.labels.samples.names()]
    return folders if 1 < len(set(folders)) <= MOST_CATEGORIES else None


def _name_documents(ax: Axes, points: Any, names: Sequence[str]) -> None:
    for point, name in zip(points.T, names, strict=True):
        ax.annotate(
            os.path.basename(name),
            tuple(point),
            (4, 4),
            textcoords="offset points",
            color=MUTED,
            fontsize=7,
            parse_math=False,
        )
