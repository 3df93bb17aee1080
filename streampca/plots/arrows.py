"""Features as arrows: over the samples, over documents, and in the circle of correlations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidTypeError
from streampca.matrix import AxisLabels
from streampca.models.text.lsa_result import LSADecomposition
from streampca.plots.canvas import FAINT, INK, MUTED, PALETTE, drawing_axes, outlined, state
from streampca.plots.colours import MOST_CATEGORIES
from streampca.plots.loadings import shortened
from streampca.plots.presented import at_most, column_of, plane_of, presented
from streampca.plots.scores import scores as draw_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
WIDTH = 0.012  # of a letter of a name, as a share of the picture
LEAST_ARROW = 0.15  # of the longest: shorter ones would only cover the centre


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
    directions and relative lengths mean something; compared with scores their lengths do not.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    Source: Gabriel 1971, "The biplot graphic display of matrices", Biometrika 58(3).

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> plots.biplot(model, model.transform(X), n=3).get_title('left')
    'Samples, and the 3 features of 6 with the longest arrows'
    """
    shown = presented(result, view)
    indices = plane_of(components, shown)
    count = at_most(n, shown.n_features, "features")
    arrows = np.stack([shown.loadings(index) for index in indices])
    drawn = draw_scores(
        result, scores, components=components, labels=labels, view=shown.view, ax=ax
    )
    draw_features(drawn, arrows, shown.labels.features, count)
    state(
        drawn, f"Samples, and the {count} features of {shown.n_features:,} with the longest arrows"
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

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 3, 2, 1, 1, 1]
    >>> model = PCA(3).fit(X)
    >>> plots.correlation_circle(model)
    <Axes: ...>
    """
    shown = presented(result, view)
    indices = plane_of(components, shown)
    correlations = shown.required(shown.correlations, "correlations of features with components")
    arrows = np.nan_to_num(correlations(indices))
    count = at_most(n, shown.n_features, "features")
    drawn = drawing_axes(ax, (5.6, 5.6))
    turn = np.linspace(0, 2 * np.pi, 181)
    drawn.plot(np.cos(turn), np.sin(turn), color=MUTED, linewidth=1.0)
    drawn.axhline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    drawn.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    longest = _longest(arrows, 20_000)
    drawn.scatter(
        arrows[0, longest],
        arrows[1, longest],
        s=6,
        color=PALETTE[5],
        linewidths=0,
        alpha=0.6,
        rasterized=len(longest) > 2000,
    )
    chosen = longest[:count]
    _draw_arrows(drawn, arrows[:, chosen], shown.labels.features.shown(chosen.tolist()))
    drawn.set_aspect("equal")
    drawn.set_xlim(-1.25, 1.25)
    drawn.set_ylim(-1.25, 1.25)
    drawn.set_xlabel(f"Correlation with {shown.name(indices[0])}")
    drawn.set_ylabel(f"Correlation with {shown.name(indices[1])}")
    known = int(((arrows**2).sum(axis=0) > 0.5).sum())
    state(
        drawn,
        f"{known:,} of {shown.n_features:,} features have more than half of their "
        "variance in these two components",
    )
    return drawn


def _longest(arrows: Array, count: int) -> Array:
    """The numbers of the longest of (2, p) arrows, the longest first."""
    return np.argsort(-(arrows**2).sum(axis=0), kind="stable")[:count]


def _draw_arrows(ax: Axes, tips: Array, names: list[str]) -> None:
    """Arrows from the centre; names stand beyond the tips, and move apart where they meet."""
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
        far = place[0] + np.copysign(WIDTH * span[0] * len(shortened(name)), tip[0])
        left, right, first = min(place[0], far), max(place[0], far), place[1]
        while any(left < b and a < right and abs(place[1] - y) < line for a, b, y in taken):
            place[1] += np.copysign(line, tip[1])
        if place[1] != first:
            ax.plot(*np.stack([tip, place], 1), color=MUTED, linewidth=0.6, zorder=3)
        taken.append((left, right, place[1]))
        ends.append(np.array([far, place[1]]))
        ax.annotate(
            shortened(name),
            tuple(tip),
            tuple(place),
            ha="left" if tip[0] >= 0 else "right",
            va="center",
            color=INK,
            fontsize="small",
            zorder=4,
            annotation_clip=False,
            path_effects=outlined(),
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

    Examples
    --------
    >>> from streampca import LSA, plots
    >>> texts = ['cat and dog', 'dog and cat', 'sun and moon', 'moon sun', 'cat sun', 'dog moon']
    >>> ax = plots.texts(LSA(2, progress=False).fit(texts), n=3)
    >>> ax.get_xlabel().split(' (')[0]
    'Factor 1'
    """
    shown, found = presented(model), getattr(model, "result_", model)
    if not isinstance(found, LSADecomposition):
        raise InvalidTypeError(
            f"got a model by {shown.method}; expected a fitted LSA: streampca.LSA().fit(texts)"
        )
    if components is None:
        components = (2, 3) if found.n_components > 2 else (1, 2)
    indices = plane_of(components, shown)
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
    drawn.set_xlabel(shown.name(indices[0], "Factor "))
    drawn.set_ylabel(shown.name(indices[1], "Factor "))
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
