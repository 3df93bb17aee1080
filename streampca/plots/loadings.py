"""Loadings of features: the largest ones, as bars and as a table, and all along the genome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix.places import genome_of
from streampca.plots.canvas import INK, MUTED, NORMAL_95, PALETTE, drawing_axes, state
from streampca.plots.presented import at_most, component_errors, component_index, presented
from streampca.report.presentation import Presentation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]

LONGEST_NAME = 40  # characters, to the left of a bar; the table has full names


def loadings(
    result: Any,
    *,
    component: int = 1,
    n: int = 15,
    view: str | None = None,
    certainty: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """The features with the largest |loading| on one component, as horizontal bars.

    result : a fitted estimator or a Decomposition.  view : "x" (None) or "y" of a model of two
        views, whose loadings are correlations of features with the scores of their view.
    component : its number, from 1.  n : how many features, or all if there are fewer.
    certainty : what :func:`streampca.bootstrap` returned: lines over the bars are 95 % intervals
        of the sample, for a component of this variance.

    A loading is the component's entry times the square root of its variance, in the units of the
    feature (a correlation, if the features were scaled to unit variance).
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Source: Jolliffe 2002, "Principal Component Analysis", 2nd ed., section 2.3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> ax = plots.loadings(model, component=1, n=4)
    >>> len(ax.patches), ax.get_title('left')
    (4, 'The 4 largest of 6 loadings on PC1')
    """
    shown = presented(result, view)
    index = component_index(component, shown)
    count = at_most(n, shown.n_features, "features")
    order, values = _largest(shown, index, count)
    names = shown.labels.features.shown(order)

    drawn = drawing_axes(ax, (6.0, 1.0 + 0.24 * count), grid="x")
    places = np.arange(count)
    colours = [PALETTE[0] if value >= 0 else PALETTE[4] for value in values]
    drawn.barh(places, values, height=0.7, color=colours)
    if certainty is not None:
        deviation = np.sqrt(shown.required(shown.variances, "variances")[index])
        errors = deviation * component_errors(shown, certainty, [index])[0, order]
        _draw_errors(drawn, np.array(values), errors)
    drawn.axvline(0.0, color=MUTED, linewidth=0.8)
    drawn.set_yticks(places, labels=[shortened(name) for name in names], parse_math=False)
    drawn.tick_params(axis="y", length=0)
    drawn.spines["left"].set_visible(False)
    drawn.set_ylim(count - 0.4, -0.6)  # the largest on top
    drawn.set_xlabel(f"{shown.loadings_name} {shown.name(index)}")
    name = shown.short_name(index)
    state(drawn, f"The {count} largest of {shown.n_features:,} loadings on {name}")
    return drawn


def loadings_table(result: Any, n: int = 10, *, view: str | None = None) -> np.ndarray[Any, Any]:
    """The features with the largest |loading| on every component, as a structured array.

    result, view : as for :func:`loadings`.  n : features per component.

    Returns (k * n,) rows of ``component`` (from 1), ``rank`` (from 1), ``feature`` (its name) and
    ``loading``; ``pandas.DataFrame(table)`` takes it as it is.
    Raises InvalidInputError, InvalidTypeError, NotFittedError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> table = plots.loadings_table(model, 2)
    >>> table.dtype.names, len(table)
    (('component', 'rank', 'feature', 'loading'), 6)
    >>> table['feature'][:2].tolist()
    ['feature 0', 'feature 1']
    """
    shown = presented(result, view)
    count = at_most(n, shown.n_features, "features")
    rows = [
        (index + 1, rank, name, value)
        for index in range(shown.n_components)
        for order, values in [_largest(shown, index, count)]
        for rank, (name, value) in enumerate(
            zip(shown.labels.features.shown(order), values, strict=True), 1
        )
    ]
    width = max((len(row[2]) for row in rows), default=1)
    columns = [
        ("component", np.int64),
        ("rank", np.int64),
        ("feature", f"U{max(width, 1)}"),
        ("loading", np.float64),
    ]
    return np.array(rows, dtype=columns)


def _draw_errors(ax: Axes, values: Array, errors: Array) -> None:
    ax.errorbar(
        values,
        np.arange(len(values)),
        xerr=NORMAL_95 * errors,
        fmt="none",
        ecolor=INK,
        elinewidth=1.0,
        capsize=2,
    )


def _largest(shown: Presentation, index: int, count: int) -> tuple[list[int], list[float]]:
    """Numbers of features and their loadings, without forming all (p, k) loadings."""
    column = shown.loadings(index)
    order = np.argsort(-np.abs(column), kind="stable")[:count]
    return order.tolist(), column[order].tolist()


def shortened(name: str) -> str:
    """Shorten a name in the middle: names that differ only in a number differ at an end."""
    if len(name) <= LONGEST_NAME:
        return name
    tail = LONGEST_NAME // 2
    return f"{name[: LONGEST_NAME - tail - 1]}…{name[-tail:]}"


# Loadings along the genome.

RASTER = (4000, 1000)  # cells along x and y in which one point hides others
LABELLED = 26  # chromosomes with a name each


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

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from streampca import PCA, plots
    >>> calls = np.random.default_rng(0).integers(0, 3, (40, 6))
    >>> places = {'chromosome': ('variant', list('112233')), 'position': ('variant', [5, 90] * 3)}
    >>> model = PCA(2).fit(xr.DataArray(calls, places, ('sample', 'variant')))
    >>> [tick.get_text() for tick in plots.manhattan(model).get_xticklabels()]
    ['1', '2', '3']
    """
    shown = presented(result, view)
    index = component_index(component, shown)
    axis = shown.labels.features
    genome = genome_of(axis)
    if genome is None:
        raise InvalidInputError(
            "the features have no chromosomes and positions, as those of PLINK files and VCF Zarr "
            "do; plots.loadings(model) shows the largest loadings of any features"
        )
    values = np.abs(shown.loadings(index))
    drawn = drawing_axes(ax, (10.0, 3.6), grid="y")
    visible = _visible(genome.place, values)
    colours = np.array([PALETTE[0], "#7a7a7a"])[genome.number[visible] % 2]
    drawn.scatter(
        genome.place[visible],
        values[visible],
        s=4,
        c=colours,
        linewidths=0,
        rasterized=len(visible) > 2000,
    )
    few = len(genome.names) <= LABELLED
    ticks = range(len(genome.names)) if few else range(0, len(genome.names), 5)
    drawn.set_xticks(genome.centres[ticks], labels=[genome.names[i] for i in ticks])
    drawn.tick_params(axis="x", length=0)
    drawn.margins(x=0.01)
    drawn.set_ylim(bottom=0.0)
    drawn.set_xlabel("Chromosome")
    name = shown.short_name(index)
    drawn.set_ylabel(f"|Loading| on {name}")
    top, squares = int(np.argmax(values)), np.sort(values**2)[::-1]
    most = squares[: max(1, len(squares) // 100)].sum() / max(squares.sum(), np.finfo(float).tiny)
    state(
        drawn,
        f"{name}: 1 % of {len(values):,} variants hold {100 * most:.0f} % of the "
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
