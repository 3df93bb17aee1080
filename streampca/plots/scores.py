"""Pictures of scores: the samples on the components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix.alignment import rows_of
from streampca.plots.canvas import (
    FAINT,
    INK,
    PALETTE,
    checked_axes,
    drawing_axes,
    legend_beside,
    sheet,
    state,
)
from streampca.plots.colours import Categories, Continuous, colouring
from streampca.plots.density import draw_density, draw_ellipses, draw_uncertainty
from streampca.plots.presented import (
    VIEWS,
    certain_of,
    count_of,
    indices_of,
    plane_of,
    points_of,
    presented,
    scores_of,
    scores_of_views,
)
from streampca.report.presentation import Presentation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
Colours = Categories | Continuous | None
MANY = 50_000  # points from which a picture shows their density
MOST_POINTS = 200_000  # drawn one by one
RASTERIZED_FROM = 2_000  # vector files with more points are slow to open


def scores(
    result_or_model: Any,
    scores: Any = None,
    *,
    components: Sequence[int] = (1, 2),
    labels: Any = None,
    density: bool | None = None,
    ellipses: bool = False,
    view: str | None = None,
    certainty: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """Scatter of the samples on two components, or in space on three.

    result_or_model : a fitted estimator or a Decomposition. Of a model of two views scores of X are
        drawn against those of Y, for the first pair of ``components``.
    view : "x" or "y" of such a model: its scores alone, on two components.
    scores : (n, k) from ``transform`` (NumPy, Dask, Zarr, xarray, data frame); None takes those of
        the training rows, if the fit kept them (wide fits do).
    components : two or three numbers, from 1.
    labels : (n,) one per sample. Text, booleans and up to 12 different integers get a legend;
        other numbers and dates a colourbar. The name of a Series or DataArray is its title.
        Labels with names (a Series, a DataArray, a dict) go by these names, in any order.
    density : draw an image of the number of samples instead of points, with the mean of their
        colours; None does so in the plane for more than 50,000.
    ellipses : for each category the ellipse of 95 % of a normal distribution, and its name.
    certainty : what :func:`streampca.bootstrap` returned: ellipses in which 95 % of samples place
        the points of the rows that it resampled, of 100 of them at most.

    Labelled points are drawn in a fixed shuffled order, so that no group hides another because of
    the order in the file. Without density, of more than 200,000 points a fixed sample is drawn;
    the title says so.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Cost: reads only the columns that it draws, and computes them if the scores are lazy. A million
    samples draw in about a second.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> groups = np.where(X[:, 0] > 0, 'east', 'west')
    >>> ax = plots.scores(model, model.transform(X), labels=groups)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['east', 'west']
    """
    shown = presented(result_or_model, view)
    both = shown.other is not None
    if both:
        indices = indices_of(np.atleast_1d(np.asarray(components))[:1].tolist(), shown)
    else:
        indices = plane_of(components, shown, 3)
    checked_axes(ax, dimensions=2 if both else len(indices))
    sources = scores_of_views(shown, scores)
    n = count_of(sources[0])
    colours = _colours(shown, labels, None if both else scores, n)
    points = points_of(sources, indices)
    flat = len(points) == 2
    if ellipses and (not isinstance(colours, Categories) or not flat):
        raise InvalidInputError(
            "ellipses=True needs two components, and a category of each sample: labels=names"
        )
    spread = None
    if certain_of(shown, certainty) is not None:
        if not flat or n != len(certainty.scores if certainty.scores is not None else ()):
            raise InvalidInputError(
                "certainty draws ellipses on two components, of the rows that streampca.bootstrap "
                "resampled; the scores are of others"
            )
        spread = certainty.score_covariances(tuple(indices))
    dense = flat and (n > MANY if density is None else density)
    drawn = drawing_axes(ax, (6.4, 4.8), dimensions=len(points))
    if dense:
        draw_density(drawn, points, colours)
    else:
        _draw_points(drawn, points, colours)
    if ellipses and isinstance(colours, Categories):
        draw_ellipses(drawn, points, colours)
    if spread is not None:
        draw_uncertainty(drawn, points, spread)
    if both:
        pair, remark = shown.short_name(indices[0]), shown.remarks[indices[0]]
        _name_axes(drawn, [f"{pair}: scores of {one.upper()}" for one in VIEWS])
        r = f"correlation of the scores {_correlation(points):.2f}"
        state(drawn, f"{n:,} samples; {pair.lower()} ({remark}, {r})")
    else:
        _name_axes(drawn, [shown.name(index) for index in indices])
        state(drawn, _title(n, dense, colours, shown, indices))
    return drawn


def _correlation(points: Array) -> float:
    seen = np.isfinite(points).all(axis=0)
    spread = points[:, seen].std(axis=1) if seen.any() else np.zeros(2)
    return round(float(np.corrcoef(points[:, seen])[0, 1]), 2) + 0.0 if spread.all() else 0.0


def _draw_points(ax: Axes, points: Array, colours: Colours) -> None:
    """(d, n) points one by one, or a fixed sample of very many."""
    random, n = np.random.default_rng(0), points.shape[1]
    order = np.arange(n)
    if n > MOST_POINTS:
        order = np.sort(random.choice(n, MOST_POINTS, replace=False))
    if colours is not None:
        order = order if not isinstance(colours, Categories) else random.permutation(order)
        colours = colours.take(order)
    points = points[:, order]
    style = _style(points.shape[1]) | ({"depthshade": False} if len(points) == 3 else {})
    if colours is None:
        ax.scatter(*points, color=PALETTE[0], **style)
    else:
        colours.draw(ax, points, style)


def _title(
    n: int, dense: bool, colours: Colours, shown: Presentation, indices: Sequence[int]
) -> str:
    groups = f" of {len(colours.names)} groups" if isinstance(colours, Categories) else ""
    many = f"{n:,} samples{groups}"
    if dense:
        many = f"Density of {many}"
    elif n > MOST_POINTS:
        many = f"{MOST_POINTS:,} of {many} drawn"
    carries = shown.carries(indices)
    if not carries or shown.bars is not None:
        return f"{many}; {carries}".rstrip("; ")
    return f"{many}; these components carry {carries}"


# New samples over those of the fit.


def projected(
    result_or_model: Any,
    new_scores: Any,
    *,
    components: Sequence[int] = (1, 2),
    labels: Any = None,
    new_labels: Any = None,
    scores: Any = None,
    view: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """New samples on two components, over the reference panel: the samples of the fit.

    new_scores : (m, k) from ``transform``, or what ``project_samples`` returned; samples without
        scores (NaN) are left out, and counted in the title.
    labels : (n,) one category for each sample of the fit, as for :func:`scores`.
    new_labels : (m,) those of the new samples, which then have the colours of their categories.
    scores : (n, k) of the fit, where it kept none.  view : "x" (None) or "y" of a model of two.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> ax = plots.projected(model, model.transform(X[:5] + 1), scores=model.transform(X))
    >>> ax.get_title('left')
    '5 new samples over the 50 samples of the fit'
    """
    shown = presented(result_or_model, view)
    indices = plane_of(components, shown)
    new_names = getattr(new_scores, "samples", None)  # of a GenotypeProjection
    new_scores = new_scores if new_names is None else new_scores.scores
    panel, source = scores_of(shown, scores), scores_of(shown, new_scores, "new_scores")
    n, m = count_of(panel), count_of(source)
    colours, own = _colours(shown, labels, scores, n), None
    if new_labels is not None:
        rows = rows_of(shown.labels.samples, new_scores, m) if new_names is None else new_names
        colours, own = _same_colours(colours, colouring(new_labels, rows), n)
    drawn, points = drawing_axes(ax, (6.4, 4.8)), points_of([source], indices)
    (draw_density if n > MANY else _draw_points)(drawn, points_of([panel], indices), colours)
    legend = drawn.get_legend()
    _draw_new(drawn, points, own)
    if legend is not None:
        drawn.add_artist(legend)
    _name_axes(drawn, [shown.name(index) for index in indices])
    lost = int(np.isnan(points).any(axis=0).sum())
    gone = f"; {lost:,} without scores left out" if lost else ""
    state(drawn, f"{m - lost:,} new samples over the {n:,} samples of the fit{gone}")
    return drawn


def _same_colours(panel: Colours, new: Colours, n: int) -> tuple[Categories, Categories]:
    """Labels of the n samples of a panel, or none, and of new ones, with one colour a category."""
    if panel is None:
        panel = Categories("", (), np.full(n, -1), "samples of the fit")
    if not (isinstance(panel, Categories) and isinstance(new, Categories)):
        raise InvalidInputError("labels and new_labels hold numbers or dates; expected categories")
    names = tuple(dict.fromkeys((*panel.names, *new.names)))
    place = np.array([*map(names.index, new.names), -1])
    return replace(panel, names=names), replace(new, names=names, codes=place[new.codes])


def _draw_new(ax: Axes, points: Array, colours: Categories | None) -> None:
    """(2, m) new samples over a panel, with their legend."""
    m = points.shape[1]
    style: dict[str, Any] = {
        "s": float(np.clip(700.0 / np.sqrt(max(m, 1)), 9.0, 60.0)),
        "zorder": 4,
        "rasterized": m > RASTERIZED_FROM,
    }
    if colours is None:
        style |= {"marker": "X", "edgecolors": "white", "linewidths": 0.6}
        mark = ax.scatter(*points, color=INK, **style)
    else:
        style |= {"edgecolors": INK, "linewidths": 0.9}
        order = np.random.default_rng(0).permutation(m)
        colours.take(order).draw(ax, points[:, order], style, legend=False)
        mark = ax.scatter([], [], s=style["s"], color="none", edgecolors=INK, linewidths=0.9)
    legend_beside(ax, [mark], ["new samples"], loc="lower left", bbox_to_anchor=(1.02, 0.0))


# Pairs: every two of several components.


def pairs(
    result_or_model: Any,
    scores: Any = None,
    *,
    components: Sequence[int] | None = None,
    labels: Any = None,
    view: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A matrix of pictures: samples on every two of some components, and how each is distributed.

    scores, labels : as for :func:`scores`.  components : numbers from 1; None takes the first four.
    view : "x" (None) or "y" of a model of two views.

    Returns the Axes that frames the panels; these are ``ax.child_axes``, row by row of the lower
    triangle. Raises InvalidInputError and as :func:`scores`.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> ax = plots.pairs(model, model.transform(X), components=(1, 2, 3))
    >>> len(ax.child_axes)
    6
    """
    shown = presented(result_or_model, view)
    if components is None:
        components = range(1, min(4, shown.n_components) + 1)
    indices = plane_of(components, shown, most=max(2, shown.n_components))
    source = scores_of(shown, scores)
    n, count = count_of(source), len(indices)
    colours, points = _colours(shown, labels, scores, n), points_of([source], indices)
    frame, panels = sheet(ax, count * count, (2.0, 1.8), count, (0.08, 0.08))
    for i, panel in enumerate(panels):
        row, column = divmod(i, count)
        if column > row:
            panel.remove()
            continue
        drawing_axes(panel, (1.0, 1.0))
        panel.tick_params(labelbottom=row == count - 1, labelleft=column == 0 and row > 0)
        if row == column:
            _draw_distribution(panel, points[row], colours)
        else:
            _draw_pair(panel, points[[column, row]], colours)
        if row == count - 1:
            panel.set_xlabel(shown.name(indices[column]), fontsize="small")
        if column == 0 and row > 0:
            panel.set_ylabel(shown.name(indices[row]), fontsize="small")
    if isinstance(colours, Categories):
        colours.draw_legend(frame)
        legend: Any = frame.get_legend()
        legend.set_loc("upper right")
        legend.set_bbox_to_anchor((1.0, 1.0), transform=frame.transAxes)
    state(frame, _title(n, n > MANY, colours, shown, indices), pad=10.0)
    return frame


def _draw_pair(ax: Axes, points: Array, colours: Colours) -> None:
    if points.shape[1] > MANY:
        draw_density(ax, points, colours, key=False)
        return
    style = _style(4 * points.shape[1])
    if isinstance(colours, Categories):
        order = np.random.default_rng(0).permutation(points.shape[1])
        colours.take(order).draw(ax, points[:, order], style)
        legend: Any = ax.get_legend()
        legend.remove()
    elif isinstance(colours, Continuous):
        ax.scatter(points[0], points[1], c=colours.values, cmap=colours.colours(), **style)
    else:
        ax.scatter(*points, color=PALETTE[0], **style)


def _draw_distribution(ax: Axes, values: Array, colours: Colours) -> None:
    """The histogram of one component, a line for each category."""
    values = np.asarray(values)
    edges = np.histogram_bin_edges(values[np.isfinite(values)], 40)
    groups = [(PALETTE[0], np.ones(len(values), np.bool_))]
    if isinstance(colours, Categories):
        codes = np.unique(colours.codes)
        groups = [(colours.colour(int(code)), colours.codes == code) for code in codes]
    for colour, own in groups:
        counts, _ = np.histogram(values[own], edges)
        ax.stairs(counts, edges, color=colour, linewidth=1.2)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)


# What all of them read and how they look.


def _colours(shown: Presentation, labels: Any, scores: Any, n: int) -> Colours:
    return None if labels is None else colouring(labels, rows_of(shown.labels.samples, scores, n))


def _style(n: int) -> dict[str, Any]:
    """Marker size and opacity, smoothly decreasing with the number of points."""
    root = np.sqrt(max(n, 1))
    return {
        "s": float(np.clip(450.0 / root, 2.0, 24.0)),
        "alpha": float(np.clip(40.0 / root, 0.25, 0.85)),
        "linewidths": 0,
        "rasterized": n > RASTERIZED_FROM,
    }


def _name_axes(ax: Axes, names: list[str]) -> None:
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    if len(names) == 3:
        ax.set_zlabel(names[2])  # type: ignore[attr-defined]
        ax.set_box_aspect(None, zoom=0.92)  # type: ignore[call-arg]  # else the z label is cut
        return
    ax.axhline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    ax.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
