"""A picture of texts: documents and terms on the factors of a latent semantic analysis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.models.text.lsa_result import LSADecomposition
from streampca.plots.canvas import MUTED, at_most, component_index, component_name, result_of, state
from streampca.plots.colours import MOST_CATEGORIES
from streampca.plots.features import draw_features
from streampca.plots.scores import column_of
from streampca.plots.scores import scores as draw_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        found, found.document_coordinates, components=components, ax=ax,
        labels=_folders(found) if labels is None else labels,
    )  # fmt: skip
    draw_features(drawn, found.term_coordinates[:, indices].T, found.labels.features, count)
    if found.n_documents <= FEW:
        _name_documents(drawn, points, found.labels.samples.names())
    drawn.set_xlabel(component_name(indices[0], found, "Factor "))
    drawn.set_ylabel(component_name(indices[1], found, "Factor "))
    held = f"{found.explained_variance_ratio[indices].sum():.1%}".replace("%", " %")
    state(drawn, f"{found.n_documents:,} documents, and {count} of {found.n_features:,} terms, on "
          f"factors that hold {held} of the squared length")  # fmt: skip
    return drawn


def _folders(found: LSADecomposition) -> list[str] | None:
    """The folder of each document, or None where they are not in a few of them."""
    if not found.labels.samples.named:
        return None
    folders = [os.path.dirname(name) for name in found.labels.samples.names()]
    return folders if 1 < len(set(folders)) <= MOST_CATEGORIES else None


def _name_documents(ax: Axes, points: Any, names: Sequence[str]) -> None:
    for point, name in zip(points.T, names, strict=True):
        ax.annotate(os.path.basename(name), tuple(point), (4, 4), textcoords="offset points",
                    color=MUTED, fontsize=7, parse_math=False)  # fmt: skip
