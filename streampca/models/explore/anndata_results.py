"""Writes a fitted result into an AnnData, on disk or in memory, where scanpy expects it."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChosenFeatures, Labels
from streampca.matrix.alignment import rows_along
from streampca.models.contract.linear import LinearModel, decomposition_of
from streampca.models.explore.highly_variable import CHOSEN_BY
from streampca.models.results.decomposition import Decomposition
from streampca.sources.sparse.anndata import axis_names, axis_names_in_memory, variable_mask
from streampca.store.anndata import opened_for_writing, refuse_elements, write_elements

ELEMENTS = ("obsm/X_pca", "varm/PCs", "uns/pca")
AUTO, HIGHLY_VARIABLE = "auto", "highly_variable"


def write_anndata(
    model: LinearModel,
    target: Any,
    X: Any = None,
    *,
    scores: Any = None,
    key_added: str | None = None,
    mask_var: str | None = AUTO,
    overwrite: bool = False,
) -> None:
    """Put scores into obsm["X_pca"], components into varm["PCs"], variances into uns["pca"].

    model : a fitted PCA or TruncatedSVD.
    target : path of an ``.h5ad`` or of an AnnData in Zarr, or an AnnData object.
    X : the rows to score if the fit has no scores (it streamed samples): one pass.
    scores : (n, k) the scores, if they are known already; needed after ``remove=`` of arrays.
    key_added : one name in obsm, varm and uns instead of those three, as in scanpy.
    mask_var : the column of var that says which features the components are made from, where they
        are not all of them; None leaves it out. "auto" is "highly_variable" where
        ``highly_variable(...).of(X)`` chose them, else None.
    overwrite : replace what is there.

    A model of some of the features has rows of 0 for the others, as scanpy writes them; features
    are found by the numbers of ``highly_variable``, or by name, those of one name in their order.
    The names of samples, where both know them, must be the same. uns["pca"]["params"] has scanpy's
    ``zero_center``, ``use_highly_variable`` and ``mask_var`` (absent for None).

    Cost: a pass if X is given; memory of the scores and of the components.
    Raises InvalidInputError where shapes or names do not fit, before anything is written.

    Examples
    --------
    >>> from streampca import PCA, write_anndata
    >>> model = PCA(50).fit("cells.h5ad")  # doctest: +SKIP
    >>> write_anndata(model, "cells.h5ad", "cells.h5ad")  # doctest: +SKIP
    """
    result = decomposition_of(model, "write_anndata(PCA(50).fit(adata), adata)")
    names = _names_of(target)
    if scores is None:
        scores = _scores(model, result, X)
    else:
        rows_of_target = AxisLabels.plain("obs", len(names[0]), names[0])
        scores = rows_along(result.unscaled_scores(scores), rows_of_target, "scores")
    _check_shape(len(scores), len(names[0]))
    _check_samples(result.labels.samples, names[0])
    rows = _places(result, names[1])
    components = np.zeros((len(names[1]), result.n_components))
    components[rows] = result.require_components().T
    column = _mask_column(result, mask_var, len(names[1]))
    found = _uns_entry(model, result, column)
    obsm, varm, uns = (key_added,) * 3 if key_added else ("X_pca", "PCs", "pca")
    masks = {} if column is None else _new_mask(target, column, rows, len(names[1]), overwrite)
    if not isinstance(target, (str, os.PathLike)):
        _refuse_present(target, obsm, varm, uns, overwrite)
        target.obsm[obsm], target.varm[varm], target.uns[uns] = scores, components, found
        for name, mask in masks.items():
            target.var[name] = mask
        return
    elements = {f"obsm/{obsm}": scores, f"varm/{varm}": components, f"uns/{uns}": found}
    elements |= {f"var/{name}": mask for name, mask in masks.items()}
    with opened_for_writing(target) as root:
        write_elements(root, elements, overwrite)


def _uns_entry(model: LinearModel, result: Decomposition, column: str | None) -> dict[str, Any]:
    """The entry of uns["pca"]."""
    params: dict[str, Any] = {
        "zero_center": bool(result.settings.get("center", True)),
        "use_highly_variable": column == HIGHLY_VARIABLE,
        "solver": str(result.plan.get("solver", "")),
    }
    return {
        "params": params if column is None else params | {"mask_var": column},
        "variance": np.array(model.explained_variance_),
        "variance_ratio": np.array(model.explained_variance_ratio_),
    }


def _choice(result: Decomposition) -> ChosenFeatures | None:
    """How the features of the fit were selected, if the fit knows."""
    steps = result.preprocessing.steps
    return next((step for step in steps[::-1] if isinstance(step, ChosenFeatures)), None)


def _mask_column(result: Decomposition, mask_var: str | None, n_features: int) -> str | None:
    """The column that marks the used features; None if all were used, or if it is left out."""
    if result.n_features == n_features:
        return None
    if mask_var != AUTO:
        return mask_var
    choice = _choice(result)
    return HIGHLY_VARIABLE if choice is not None and choice.by == CHOSEN_BY else None


def _new_mask(
    target: Any, column: str, rows: Array, n_features: int, overwrite: bool
) -> dict[str, Array]:
    """The column, by its name, unless it is there already. Raises InvalidInputError."""
    mask = np.zeros(n_features, bool)
    mask[rows] = True
    there = variable_mask(target, column)
    if there is None:
        return {column: mask}
    if np.array_equal(there, mask):
        return {}
    if not overwrite:
        raise InvalidInputError(
            f"var[{column!r}] is there already with {np.count_nonzero(there)} features, and the "
            f"fit used {len(rows)}, not the same; use overwrite=True, another mask_var=, or "
            "mask_var=None to leave the column as it is"
        )
    return {column: mask}


def check_target(
    target: str | os.PathLike[str], labels: Labels, shape: tuple[int, int], overwrite: bool
) -> None:
    """Refuse an AnnData on disk that :func:`write_anndata` would refuse after a fit of a matrix of
    this shape. Raises InvalidInputError, SourceError."""
    names = _names_of(target)
    _check_shape(shape[0], len(names[0]))
    _check_samples(labels.samples, names[0])
    _named_places(labels.features, shape[1], names[1])
    with opened_for_writing(target) as root:
        refuse_elements(root, ELEMENTS, overwrite)


def _names_of(target: Any) -> tuple[Any, Any]:
    on_disk = isinstance(target, (str, os.PathLike))
    return axis_names(os.fspath(target)) if on_disk else axis_names_in_memory(target)


def _check_shape(n_scores: int, n_samples: int) -> None:
    if n_scores != n_samples:
        raise InvalidInputError(f"{n_scores} scores for an AnnData of {n_samples} observations")


def _scores(model: LinearModel, result: Decomposition, X: Any) -> Array:
    if X is not None:
        return np.asarray(model.transform(X))
    if result.scores is None:
        raise InvalidInputError(
            "this fit streamed samples and kept no scores; say of what they are: "
            "write_anndata(model, target, X)"
        )
    if getattr(model, "whiten", False):
        raise InvalidInputError(
            "whitened scores are made from data: write_anndata(model, target, X)"
        )
    return np.array(result.scores)


def _refuse_present(adata: Any, obsm: str, varm: str, uns: str, overwrite: bool) -> None:
    pairs = ((adata.obsm, obsm), (adata.varm, varm), (adata.uns, uns))
    there = [name for held, name in pairs if name in held]
    if there and not overwrite:
        raise InvalidInputError(
            f"{', '.join(there)} is there already; use overwrite=True, or another key_added=..."
        )


def _check_samples(fitted: AxisLabels, names: Array) -> None:
    known = fitted.coords.get(fitted.dims[0]) if len(fitted.dims) == 1 else None
    if known is None or len(known) != len(names):
        return
    apart = np.flatnonzero(np.asarray(known, dtype=object) != np.asarray(names, dtype=object))
    if apart.size:
        first = int(apart[0])
        raise InvalidInputError(
            f"{apart.size} observations have other names in the fit (first: {known[first]!s} for "
            f"{names[first]!s}); write scores of the rows of this AnnData"
        )


def _places(result: Decomposition, names: Array) -> Array:
    """Rows of ``varm`` for the features of the fit: as they were chosen, or by name."""
    features, choice = result.labels.features, _choice(result)
    if choice is not None and choice.n_features == len(names):
        own = _own_names(features, result.n_features)
        if own is None or own == [str(name) for name in np.asarray(names)[choice.numbers]]:
            return choice.numbers
    return _named_places(features, result.n_features, names)


def _own_names(fitted: AxisLabels, p: int) -> list[str] | None:
    """(p,) names of the features of a fit, or None."""
    own = fitted.coords.get(fitted.dims[0]) if len(fitted) == p and len(fitted.dims) == 1 else None
    return None if own is None else [str(name) for name in own]


def _named_places(fitted: AxisLabels, p: int, names: Array) -> Array:
    """Rows of ``varm`` for the features of the fit: by name, of repeated names in their order."""
    own = _own_names(fitted, p)
    if own is None:
        if p != len(names):
            raise InvalidInputError(
                f"the model has {p} features without names, the AnnData {len(names)}; nothing "
                "tells which they are. Fit what streampca.open(target) gives."
            )
        return np.arange(p)
    places: dict[str, list[int]] = {}
    for j, name in enumerate(names):
        places.setdefault(str(name), []).append(j)
    if absent := [name for name in own if name not in places]:
        raise InvalidInputError(
            f"{len(absent)} features of the fit are not in the AnnData: "
            f"{shorten(absent[:4], len(absent))}"
        )
    used = Counter(own)
    unsure = [name for name, count in used.items() if count != len(places[name])]
    if unsure:
        raise InvalidInputError(
            f"{len(unsure)} names of features of the fit are those of other features of the "
            f"AnnData too ({shorten(unsure[:4], len(unsure))}), and nothing tells which were used. "
            "Make them unique and fit again: adata.var_names_make_unique()"
        )
    left = {name: iter(found) for name, found in places.items()}
    return np.array([next(left[name]) for name in own], dtype=np.int64)
