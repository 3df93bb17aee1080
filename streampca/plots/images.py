"""Pictures of a model of images: its mean, its eigenvectors, and what some of them reconstruct."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.plots.canvas import INK, MUTED, PALETTE, drawing_axes, pyplot
from streampca.plots.presented import at_most, presented
from streampca.report.presentation import Presentation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
SHARES = (0.95, 0.99, 0.999)
ACROSS = 7  # pictures in a row of the sheet


def images(
    model: Any,
    X: Any = None,
    *,
    shape: Sequence[int] | None = None,
    n: int = 20,
    k: Sequence[int] = (10, 50, 200),
) -> Figure:
    """The mean image, the first eigenvectors, reconstructions, and the share of variance.

    model : a fitted model of images, whose features have the dimensions of pixels
        (``streampca.open_images``, or a Zarr array that ``streampca convert`` made of them).
    X : (m, p) or (m, h, w) a few images to reconstruct and to draw; or a ChunkedMatrix,
        of which the first three are taken, with no pass. None leaves them out.
    shape : (h, w) or (h, w, 3) of an image, where the model does not know it.
    n : eigenvectors to show.  k : numbers of components to reconstruct from; those beyond the model
        are left out.

    Each eigenvector is scaled by itself, from minus to plus its largest entry: grey is 0, and which
    of both ends is bright says nothing.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    Source: Turk and Pentland 1991, J. Cogn. Neurosci. 3(1):71.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, plots
    >>> X = np.random.default_rng(0).normal(size=(30, 12))
    >>> plots.images(PCA(4).fit(X), shape=(3, 4), n=4)
    <Figure size ...>
    """
    found = presented(model)
    size = _shape(found, shape)
    rows = None if X is None else _rows(X, found.n_features)
    if rows is not None and not hasattr(model, "inverse_transform"):
        raise InvalidTypeError("reconstructions need the fitted estimator, not its result_ alone")
    counts = [one for one in k if one <= found.n_components] or [found.n_components]
    shown = at_most(n, found.n_components, "eigenvectors")
    plt = pyplot()
    deep = math.ceil((shown + 1) / ACROSS)
    tall = 0.0 if rows is None else 1.45 * len(rows)
    figure: Any = plt.figure(figsize=(8.4, 1.45 * deep + tall + 2.9), layout="constrained")
    parts = figure.subfigures(
        2 if rows is None else 3,
        1,
        height_ratios=[1.45 * deep, *([] if rows is None else [tall + 0.3]), 2.6],
    )
    _sheet(parts[0], found, size, shown)
    if rows is not None:
        _reconstructions(parts[1], model, rows, size, counts)
    _curve(parts[-1], found)
    drawn: Figure = figure
    return drawn


def components_for(shares: Array, wanted: float) -> int | None:
    """The fewest components that carry a share of the variance; None where all do not.

    shares : (k,) of the single components.
    """
    total = np.cumsum(shares)
    reached = np.flatnonzero(total >= wanted - 1e-12)
    return int(reached[0]) + 1 if len(reached) else None


def _sheet(part: Any, found: Presentation, size: tuple[int, ...], shown: int) -> None:
    deep = math.ceil((shown + 1) / ACROSS)
    axes = part.subplots(deep, ACROSS, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    _draw(axes[0], np.asarray(found.required(found.mean, "mean of its features")), size, "mean")
    for i in range(shown):
        row = np.asarray(found.components[i], dtype=np.float64)
        largest = float(np.abs(row).max()) or 1.0
        title = f"{i + 1}: {found.remarks[i]}" if found.remarks else f"{i + 1}"
        _draw(axes[i + 1], row / (2 * largest) + 0.5, size, title, (0, 1))


def _reconstructions(
    part: Any, model: Any, rows: Array, size: tuple[int, ...], counts: Sequence[int]
) -> None:
    axes = part.subplots(len(rows), max(ACROSS, len(counts) + 1), squeeze=False)
    scores = np.asarray(model.transform(rows))
    limits = (float(rows.min()), float(rows.max()))
    for j, count in enumerate(counts):
        some = scores.copy()
        some[:, count:] = 0
        made = np.asarray(model.inverse_transform(some))
        for i, row in enumerate(made):
            _draw(axes[i, j], row, size, f"k = {count}" if i == 0 else "", limits)
    for i, row in enumerate(rows):
        _draw(axes[i, len(counts)], row, size, "original" if i == 0 else "", limits)
    for ax in axes.ravel():
        ax.set_axis_off()


def _curve(part: Any, found: Presentation) -> None:
    ax = drawing_axes(part.subplots(), (6, 3))
    shares = found.required(found.shares, "shares of a variance")
    curve = np.concatenate([[0.0], np.cumsum(shares)])
    ax.plot(np.arange(len(curve)), curve, color=PALETTE[0], linewidth=1.6)
    for i, share in enumerate(SHARES):
        count = components_for(shares, share)
        if count is None:
            continue
        ax.plot(count, curve[count], "o", color=PALETTE[4], markersize=5, zorder=3)
        left = count > len(curve) / 5  # else the text would lie on the axis
        ax.annotate(
            f"{100 * share:g} %: {count}",
            (count, curve[count]),
            (-4 if left else 8, -14 - 13 * i),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize="small",
            color=INK,
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6},
        )
    if components_for(shares, SHARES[0]) is None:
        said = f"{len(shares)} components reach {100 * curve[-1]:.1f} %; 95 % takes more"
        ax.set_title(said, loc="left", color=INK, fontsize="small")
    ax.set(xlim=(0, len(curve) - 1), ylim=(0, 1.02), xlabel="Number of components")
    ax.set_ylabel("R² (share of variance)")


def _draw(
    ax: Any,
    row: Array,
    size: tuple[int, ...],
    title: str,
    limits: tuple[float, float] | None = None,
) -> None:
    low, high = limits or (float(np.nanmin(row)), float(np.nanmax(row)))
    values = np.clip((np.reshape(row, size) - low) / ((high - low) or 1.0), 0.0, 1.0)
    ax.imshow(values, cmap="gray", vmin=0.0, vmax=1.0)
    ax.set_title(title, fontsize=7, color=INK, pad=2)


def _shape(found: Presentation, shape: Sequence[int] | None) -> tuple[int, ...]:
    """(h, w) or (h, w, 3). Raises InvalidInputError where the features are no pixels."""
    size = tuple(found.labels.features.sizes if shape is None else map(int, shape))
    colour = len(size) == 3 and size[2] == 3
    if (len(size) != 2 and not colour) or math.prod(size) != found.n_features:
        raise InvalidInputError(
            f"the {found.n_features} features are not known to be pixels (shape {size}); say the "
            "height and width of an image: shape=(112, 92)"
        )
    return size


def _rows(X: Any, p: int) -> Array:
    """(m, p) of a few images."""
    values = X.read(0, 0, min(3, X.shape[0])) if hasattr(X, "chunk_edges") else np.asarray(X)
    if values.ndim < 2 or math.prod(values.shape[1:]) != p:
        raise InvalidInputError(f"X has shape {values.shape}; expected images of {p} pixels")
    return np.asarray(values.reshape(len(values), p))
