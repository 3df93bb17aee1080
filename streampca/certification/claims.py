"""Components as they come: arrays, models of several packages, tables of PLINK 2 and smartpca."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from streampca.certification.conventions import AUTO
from streampca.errors import InvalidInputError, InvalidTypeError, shorten
from streampca.genetics.id_lists import sample_keys
from streampca.genetics.tables import read_eigenvec, read_evec
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, select
from streampca.matrix.alignment import rows_of as row_labels
from streampca.matrix.alignment import shared_places
from streampca.matrix.names import counts, whole_numbers
from streampca.models.results.linear_result import LinearResult
from streampca.sources.tables.frames import column_names, is_frame, row_names

KINDS = ("loadings", "scores")
FITTED = "FITTED"  # column of our tables
FEW = 20_000  # entries by which the number of digits is recognised
LEAST, MOST = 3, 10  # decimals, or significant digits, of numbers that were printed


@dataclass(frozen=True)
class Claim:
    """Components that someone computed.

    loadings : (p, k), or None.  scores : (n, k), or None.
    center, scale : as the one who computed them states, or AUTO.
    factors : (p,) by which features were multiplied, 0 for those left out; None: all alike.
    ids : of the rows of the scores by column, such as IID; None: in the order of the data.
    rows : (n,) True for the samples that were fitted, None: all.  n_samples : of these, if known.
    weight : of those together, if known.  ddof : what variances are divided by less than that.
    weighted : ``factors`` hold weights of the model, too.
    features, samples : those that the components are of, None: in the order of the data.
    dims : of the samples, where they have names.  steps : of the rows before the fit, in words.
    """

    loadings: Array | None = None
    scores: Array | None = None
    center: bool | str = AUTO
    scale: str | None = AUTO
    factors: Array | None = None
    ids: Mapping[str, list[str]] | None = None
    rows: Array | None = None
    n_samples: int = 0
    weight: float = 0.0
    ddof: float | None = None
    weighted: bool = False
    features: AxisLabels | None = None
    samples: AxisLabels | None = None
    dims: tuple[str, ...] = ()
    steps: str | None = None


class Table(NamedTuple):
    """(a, b) numbers of which only the shape of the data can say what they are, and the names of
    both axes, where they have any."""

    values: Array
    rows: AxisLabels
    columns: AxisLabels


def claim_of(components: Any) -> Claim | Table:
    """What ``components`` are, as far as they say it themselves.

    Raises InvalidTypeError for other things, SourceError for an unreadable table.
    """
    if isinstance(components, (str, os.PathLike)):
        path = os.fspath(components)
        ids, scores = (read_evec if path.endswith(".evec") else read_eigenvec)(path)
        if FITTED in ids:  # the others were projected
            rows = [i for i, one in enumerate(ids.pop(FITTED)) if one == "1"]
            ids, scores = {name: [one[i] for i in rows] for name, one in ids.items()}, scores[rows]
        return Claim(scores=scores, ids=ids)
    if isinstance(components, Claim):
        return components
    model, components = components, getattr(components, "result_", components)
    if hasattr(components, "obsm") and hasattr(components, "varm"):
        return _of_anndata(components)
    if callable(getattr(components, "components", None)):  # xeofs
        scores = components.scores()
        mode = [dim for dim in scores.dims if dim == "mode"]
        scores = scores.transpose(..., *mode)
        values = _array(scores)
        samples = row_labels(AxisLabels.plain("sample", 0), scores, len(values))
        return Claim(scores=values, samples=samples)
    if isinstance(components, LinearResult):
        return _of_result(model, components)
    if (found := getattr(components, "components_", None)) is not None:
        known = getattr(components, "mean_", None) is not None
        names = getattr(components, "feature_names_in_", None)
        features = None if names is None else AxisLabels.plain("feature", len(names), list(names))
        return Claim(loadings=_array(found).T, center=known, scale=None, features=features)
    if not hasattr(components, "__array__") and not isinstance(components, (list, tuple)):
        raise InvalidTypeError(
            f"components are a {type(model).__name__}; expected loadings (k, p) or scores (n, k) "
            "as an array, a fitted PCA, AnnData, or the path of an .eigenvec or .evec"
        )
    values = _array(components)
    axes: Any = (None, None)
    if is_frame(components):
        axes = row_names(components), column_names(components)
    return Table(
        values,
        AxisLabels.plain("sample", len(values), axes[0]),
        AxisLabels.plain("feature", values.shape[1], axes[1]),
    )


def of_shape(table: Claim | Table, shape: tuple[int, int], kind: str | None) -> Claim:
    """The claim of an array: loadings where its width is that of the data, else scores.

    Raises InvalidInputError for other shapes, and where both are possible and nothing was said.
    """
    if isinstance(table, Claim):
        return table
    (n, p), found = shape, table.values
    fits = {"loadings": found.shape[1] == p, "scores": found.shape[0] == n}
    if table.rows.named and (kind == "scores" or not fits["loadings"]):
        fits["scores"] = True  # of some of the samples
    if kind is None:
        kinds = [name for name, true in fits.items() if true]
        if len(kinds) != 1:
            raise InvalidInputError(
                f"components of shape {found.shape} for X of shape {shape}; expected loadings "
                f"(k, {p}) or scores ({n}, k)" + (". Say which: kind='scores'" if kinds else "")
            )
        kind = kinds[0]
    elif not fits[kind]:
        wanted = f"(k, {p})" if kind == "loadings" else f"({n}, k)"
        raise InvalidInputError(f"{kind} of shape {found.shape}; expected {wanted}")
    if kind == "scores":
        return Claim(scores=found, samples=table.rows)
    return Claim(loadings=found.T, features=table.columns)


def arranged(claim: Claim, matrix: ChunkedMatrix) -> tuple[Claim, ChunkedMatrix]:
    """The samples that were fitted, and the claim in the order of the data, by names.

    Raises InvalidInputError for samples that the data do not have, or that several rows name, for
    data of another number of samples, and for other features.
    """
    if claim.ids is not None and claim.scores is not None:
        rows = rows_of(claim.ids, matrix.labels.samples)
        order = np.argsort(rows)
        claim = replace(claim, scores=claim.scores[order], ids=None)
        return claim, select(matrix, samples=rows[order])
    if claim.steps not in (None, done := str(matrix.labels.preprocessing)):
        raise InvalidInputError(
            f"the steps before the fit were: {claim.steps}, and those of X are: {done}; expected X "
            "as it was fitted"
        )
    claim, matrix = _samples_by_name(claim, matrix)
    if claim.n_samples not in (0, matrix.shape[0]):
        raise InvalidInputError(
            f"the model was fitted to {claim.n_samples} samples, and X has {matrix.shape[0]}; "
            "expected those samples alone"
        )
    return _features_by_name(claim, matrix), matrix


def _samples_by_name(claim: Claim, matrix: ChunkedMatrix) -> tuple[Claim, ChunkedMatrix]:
    known, own = claim.samples, matrix.labels.samples
    places = None if known is None else shared_places(known, own, "samples of the components")
    if places is None:
        if claim.rows is not None and len(claim.rows) == matrix.shape[0]:
            matrix = select(matrix, samples=claim.rows)
        return claim, matrix
    order = np.argsort(places)
    scores = None if claim.scores is None else claim.scores[order]
    whole = len(order) == len(own)
    return replace(claim, scores=scores), matrix if whole else select(matrix, samples=places[order])


def _features_by_name(claim: Claim, matrix: ChunkedMatrix) -> Claim:
    known, own = claim.features, matrix.labels.features
    places = None if known is None else shared_places(known, own, "features of the components")
    if known is None or places is None:
        return claim
    if len(places) < len(own):
        others = np.setdiff1d(np.arange(len(own)), places)
        raise InvalidInputError(
            f"the components are not of {len(others)} of the {len(own)} features of X: "
            f"{shorten(own.names(others[:4].tolist()), len(others))}; leave these out of X"
        )
    order = np.argsort(places)
    loadings, factors = (
        None if one is None else one[order] for one in (claim.loadings, claim.factors)
    )
    return replace(claim, loadings=loadings, factors=factors, features=known.pick(order))


def rows_of(ids: Mapping[str, list[str]], samples: AxisLabels) -> Array:
    """(m,) numbers of the samples that a table names by FID and IID."""
    individual = ids.get("IID") or next(iter(ids.values()))
    family = ids.get("FID")
    known = sample_keys(samples)
    pairs = zip(family or [""] * len(individual), individual, strict=True)
    found = [known.get(f"{f}:{i}", known.get(i, -1)) for f, i in pairs]
    absent = [name for name, row in zip(individual, found, strict=True) if row < 0]
    if absent:
        raise InvalidInputError(
            f"{len(absent)} of {len(found)} samples of the components are not in the data, or "
            f"several have their id: {shorten(absent[:4], len(absent))}"
        )
    if len({*found}) < len(found):
        raise InvalidInputError("the components name a sample twice; expected one row for each")
    return np.array(found)


def _array(values: Any) -> Array:
    """(a, b) float, float32 stays."""
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
        raise InvalidInputError(
            f"components of shape {array.shape} and dtype {array.dtype}; expected real numbers, "
            "loadings (k, p) or scores (n, k)"
        )
    if not np.isfinite(array).all():
        raise InvalidInputError("components hold NaN or infinity; expected finite numbers")
    return array if array.dtype.kind == "f" else array.astype(float)


def _of_anndata(cells: Any) -> Claim:
    """obsm["X_pca"] and varm["PCs"], as scanpy writes them; genes that it left out have loadings
    of exactly 0."""
    scores, loadings = cells.obsm.get("X_pca"), cells.varm.get("PCs")
    if scores is None and loadings is None:
        raise InvalidInputError(
            "this AnnData has neither obsm['X_pca'] nor varm['PCs']; run scanpy.pp.pca first, or "
            "give an array: cells.obsm['NAME']"
        )
    loadings = None if loadings is None else _array(loadings)
    factors = None
    if loadings is not None and "highly_variable" in cells.var:
        left_out = ~np.asarray(cells.var["highly_variable"], bool)
        if not np.any(loadings[left_out]):
            factors = np.where(left_out, 0.0, 1.0)
    scores = None if scores is None else _array(scores)
    samples, features = (
        AxisLabels.plain(dim, len(names), None if counts(whole_numbers(names)) else list(names))
        for dim, names in (("obs", cells.obs_names), ("var", cells.var_names))
    )
    return Claim(loadings, scores, scale=None, factors=factors, features=features, samples=samples)


def _of_result(model: Any, result: LinearResult) -> Claim:
    """A fitted model of ours, or its result alone, by the settings of the fit."""
    if result.removes:
        raise InvalidInputError(
            "covariates were removed from the rows of this model; certify what is left of them: "
            "give certify() the residuals as X, and model.components_"
        )
    missing = None if model is result else getattr(model, "missing", None)
    if missing == "impute":
        raise InvalidInputError(
            "these are components of X with missing cells filled in by the model; certify them on "
            "that: give certify() the array model.components_, and as X model.impute(X)"
        )
    scale = AUTO if model is result else getattr(model, "scale", None)
    factors = result.weights
    left_out = [*result.dropped.tolist(), *result.filtered.tolist()]
    if left_out:
        factors = np.ones(result.n_features) if factors is None else np.array(factors, float)
        factors[left_out] = 0.0
    scores, fitted = getattr(result, "scores", None), getattr(result, "fitted", None)
    samples = result.labels.samples
    if scores is not None and fitted is not None:
        scores = np.asarray(scores)[fitted]
    loadings = result.components
    if scores is not None and missing == "pairwise":
        loadings = None  # they follow from the scores, and are singular vectors of no matrix
    return Claim(
        None if loadings is None else _array(loadings).T,
        None if scores is None else _array(scores),
        center=bool(np.any(result.mean)) or getattr(result, "feature_mean", result) is None,
        scale=scale if isinstance(scale, str) or scale is None else AUTO,
        factors=factors,
        rows=fitted,
        n_samples=result.n_samples,
        weight=float(result.weight),
        ddof=float(result.ddof),
        weighted=result.weights is not None,
        features=result.labels.features,
        samples=samples if fitted is None else samples.pick(fitted),
        dims=result.labels.samples.dims,
        steps=str(result.labels.preprocessing),
    )


def half_units(vectors: Array) -> Array:
    """(d, k) by how much each entry may have been rounded: half a unit of its last printed digit.

    Numbers of a text file are recognised by their decimals, or by their significant digits; others
    are as exact as their dtype.
    """
    few = np.asarray(vectors[:: max(1, len(vectors) // FEW)], float)
    sizes = np.abs(np.asarray(vectors, float))
    dtype = np.finfo(vectors.dtype)
    if dtype.bits >= 64:
        decimals = next((d for d in range(MOST) if _whole(few * 10.0**d)), 0)
        digits = next((d for d in range(1, MOST) if _whole(few / _unit(few, d))), 0)
        printed = [
            *([np.full(sizes.shape, 0.5 * 10.0**-decimals)] if decimals >= LEAST else []),
            *([np.where(sizes > 0, 0.5 * _unit(sizes, digits), 0.0)] if digits >= LEAST else []),
        ]
        if printed:
            return max(printed, key=lambda one: float(np.linalg.norm(one)))
    return np.asarray(sizes * float(dtype.eps) / 2.0)


def _whole(numbers: Array) -> bool:
    return bool(np.all(np.abs(numbers - np.rint(numbers)) <= 1e-4))


def _unit(values: Array, digits: int) -> Array:
    """The last of so many significant digits."""
    with np.errstate(divide="ignore"):
        power = np.floor(np.log10(np.abs(values)))
    return np.where(values == 0.0, 1.0, 10.0 ** (np.where(values == 0.0, 0.0, power) + 1 - digits))
