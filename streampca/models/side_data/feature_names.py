"""Checks that new data have the features of the fit, stacked alike, in the same order."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.alignment import axis_names
from streampca.matrix.columns import as_text, is_among, label_array
from streampca.matrix.names import comparable
from streampca.sources.dask.lazy import is_dask_frame
from streampca.sources.tables.frames import column_names, is_frame

ALLELES = ("counted_allele", "other_allele")
MOST_SHOWN = 8  # columns of a line that orders them
UNKNOWN = ("0", ".", "")  # an allele that no sample has


def check_same_features(came: AxisLabels, fitted: AxisLabels) -> None:
    """Refuse features that are not those of the fit, or in another order, if both have names.

    Axes of the same dimensions are compared coordinate by coordinate, so that a stacked grid of
    a million cells costs two short arrays; others by name. Float coordinates may differ by 1e-6.
    Variants must have the same alleles, and count the same one of them.
    Raises InvalidInputError.
    """
    if len(came) != len(fitted):
        hint = variants_hint(came, fitted)
        raise InvalidInputError(f"X has {len(came)} features, expected {len(fitted)}{hint}")
    if came.parts and fitted.parts:
        if list(came.parts) != list(fitted.parts):
            raise InvalidInputError(
                f"X has the variables {list(came.parts)}, in the fit {list(fitted.parts)}: "
                f"X[{list(fitted.parts)}]"
            )
        for variable, part in came.parts.items():
            check_same_features(part, fitted.parts[variable])
        return
    if len(came.dims) > 1 and came.dims != fitted.dims and set(came.dims) == set(fitted.dims):
        raise InvalidInputError(
            f"the features are stacked as {came.dims}, in the fit as {fitted.dims}: transpose X, "
            f"for example X.transpose(..., {', '.join(map(repr, fitted.dims))})"
        )
    if not came.named or not fitted.named:
        return
    if came.dims == fitted.dims:
        pairs = [(d, came.coords[d], fitted.coords[d]) for d in came.coords if d in fitted.coords]
    elif len(came.dims) == len(fitted.dims) == 1:
        dim = came.dims[0]
        pairs = [(dim, came.coords[dim], fitted.coords[fitted.dims[0]])]
    else:
        pairs = [("feature", label_array(came.names()), label_array(fitted.names()))]
    for dim, here, there in pairs:
        differ = np.flatnonzero(~_equal(np.asarray(here), np.asarray(there)))
        if differ.size:
            i = int(differ[0])
            raise InvalidInputError(
                f"the features are not those of the fit, or in another order: {dim} {i} is "
                f"{here[i]!s} and was {there[i]!s} ({differ.size} of {len(here)} differ). Put them "
                f"in that order, for example X.sel({dim}=...), or drop the names if they mean "
                f"nothing{variants_hint(came, fitted) or '.'}"
            )
    _check_alleles(came, fitted)


def variants_hint(came: AxisLabels, fitted: AxisLabels) -> str:
    """A hint at ``project_samples`` if both sides are variants; else ""."""
    if not all(set(ALLELES) <= set(one.extra) for one in (came, fitted)):
        return ""
    return (
        ". Variants and their alleles are matched by streampca.project_samples(model, X), "
        "on the command line by `streampca project`"
    )


def _check_alleles(came: AxisLabels, fitted: AxisLabels) -> None:
    """Refuse variants that count the other allele: their scores would have the opposite sign."""
    if not (hint := variants_hint(came, fitted)):
        return
    differ = np.zeros(len(came), np.bool_)
    for column in ALLELES:
        here, there = as_text(came.extra[column]), as_text(fitted.extra[column])
        at = np.flatnonzero(here != there)
        here, there = np.strings.upper(here[at]), np.strings.upper(there[at])
        differ[at] |= (here != there) & ~(is_among(here, UNKNOWN) | is_among(there, UNKNOWN))
    if (places := np.flatnonzero(differ)).size:
        i = int(places[0])
        now, then = ("/".join(str(one.extra[c][i]) for c in ALLELES) for one in (came, fitted))
        raise InvalidInputError(
            f"the alleles of {places.size} of {len(came)} variants are not those of the fit: "
            f"{came.name(i)} has {now} (counted/other) and had {then}{hint}"
        )


def _equal(a: Array, b: Array) -> Array:
    """(m,) where two coordinates agree; text of any kind is compared as text."""
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds <= set("biuf"):
        if "f" not in kinds:
            return np.asarray(a == b)
        largest = float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b)))
        return np.isclose(a, b, rtol=1e-6, atol=1e-9 * largest, equal_nan=True)
    if kinds == {"M"}:
        return np.asarray(a == b)
    return np.asarray(_text(a) == _text(b))


def _text(values: Array) -> Any:
    """Strings as an array that compares them whatever their storage."""
    if values.dtype.kind in "UT":
        return values
    return label_array([str(v) for v in values])


# -- names of columns -----------------------------------------------------------------------------


def text_names(features: AxisLabels) -> Array | None:
    """(p,) names of the features of a fit, where it knows them as text.

    Made from the labels each time: a million variants have theirs only once.
    """
    names = features.coords.get(features.dims[0], ()) if len(features.dims) == 1 else ()
    if not len(names) or not all(isinstance(name, str) for name in names):
        return None
    return np.asarray([str(name) for name in names], dtype=object)


def check_column_names(X: Any, features: AxisLabels) -> None:
    """Refuse a data frame with the right number of columns but other names, or another order."""
    names = _frame_columns(X)
    known = None if names is None else text_names(features)
    if known is None or names is None:
        _refuse_other_order(X, features)
        return
    if len(names) != len(known):
        return
    if not np.array_equal(names, known):
        raise InvalidInputError(_names_message(list(names), list(known)))


def _refuse_other_order(X: Any, features: AxisLabels) -> None:
    """Refuse columns that are named by numbers, those of the fit in another order."""
    names = column_names(X) if is_frame(X) or is_dask_frame(X) else []
    known = axis_names(features) if len(features.dims) == 1 else None
    known = np.arange(len(features)) if known is None else known
    if len(names) != len(known) or not len(names):
        return
    came, fitted = (one.tolist() for one in comparable(names, known))
    if came == fitted or came[0] not in fitted or set(came) != set(fitted):
        return
    i = next(i for i, (one, other) in enumerate(zip(came, fitted, strict=True)) if one != other)
    order = [names[came.index(one)] for one in fitted] if len(names) <= MOST_SHOWN else ...
    raise InvalidInputError(
        f"column {i} of X is named {names[i]!r}, and {fitted[i]} in the fit: the columns are in "
        f"another order. Put them in that order, X[{'[...]' if order is ... else order}]; or by "
        "position: X.to_numpy()"
    )


def _frame_columns(X: Any) -> Array | None:
    if not (is_frame(X) or is_dask_frame(X)):
        return None
    names = column_names(X)
    return np.asarray(names, dtype=object) if all(isinstance(c, str) for c in names) else None


def _names_message(came: list[str], fitted: list[str]) -> str:
    """scikit-learn's words for feature names that do not match."""
    message = "The feature names should match those that were passed during fit.\n"
    unexpected, absent = sorted(set(came) - set(fitted)), sorted(set(fitted) - set(came))
    if unexpected:
        message += "Feature names unseen at fit time:\n" + "".join(
            f"- {n}\n" for n in unexpected[:5]
        )
    if absent:
        message += "Feature names seen at fit time, yet now missing:\n"
        message += "".join(f"- {n}\n" for n in absent[:5])
    if not unexpected and not absent:
        message += "Feature names must be in the same order as they were in fit.\n"
    return message


# -- features of xarray objects -------------------------------------------------------------------


def arranged(X: Any, features: AxisLabels) -> Any:
    """An xarray object with the variables of the fit, stacked as in the fit; others unchanged."""
    return restacked(variables_of(X, features), features) if is_xarray(X) else X


def variables_of(X: Any, features: AxisLabels) -> Any:
    """The variables of the fit in their order, if X is a Dataset; anything else unchanged."""
    known = hasattr(X, "data_vars") and set(features.parts) <= set(X.data_vars)
    return X[list(features.parts)] if features.parts and known else X


def is_xarray(X: Any) -> bool:
    """Whether X is an xarray object, without loading xarray to find out."""
    return "xarray" in sys.modules and type(X).__module__.startswith("xarray.")


def restacked(X: Any, features: AxisLabels) -> Any:
    """An xarray object with its feature dimensions stacked as in the fit, if names show how.

    ``X.stack(space=("lat", "lon"))`` of the fit may come as lat and lon, or stacked in another
    order; and a grid of the fit may come stacked. Anything else stays as it is, and so do arrays
    that would have to be read from a file for it.
    """
    if features.parts:
        for part in features.parts.values():
            X = restacked(X, part)
        return X
    if len(features.dims) > 1:
        return _unstacked(X, set(features.dims))
    dim = features.dims[0]
    levels = _levels(features)
    if not levels or not _at_hand(X):
        return X
    if dim not in X.dims and set(levels) <= set(X.dims):
        X = X.stack({dim: levels})
    elif dim in X.indexes and list(X.indexes[dim].names) != levels:
        if set(X.indexes[dim].names) != set(levels):
            return X
        X = X.reorder_levels({dim: levels})
    return _in_order(X, dim, levels, features)


def _levels(features: AxisLabels) -> list[str]:
    """Names of the dimensions that were stacked to one; none if it is not a stack."""
    from streampca.sources.labelled.to_xarray import LEVELS

    return list(features.attrs.get(features.dims[0], {}).get(LEVELS, []))


def _unstacked(X: Any, dims: set[str]) -> Any:
    """X with the stack of these dimensions unstacked."""
    for dim in X.dims:
        if dim in X.indexes and set(X.indexes[dim].names) == dims and _at_hand(X):
            return X.unstack(dim)
    return X


def _in_order(X: Any, dim: str, levels: list[str], features: AxisLabels) -> Any:
    """X with the entries of a stacked dimension in the order of the fit, if these are the same."""
    known = [features.extra[level] for level in levels if level in features.extra]
    if dim not in X.indexes or len(known) < len(levels) or len(features) != X.sizes[dim]:
        return X
    places = X.indexes[dim].get_indexer(list(zip(*known, strict=True)))
    if np.array_equal(places, np.arange(len(places))) or len(set(places) - {-1}) < len(places):
        return X
    return X.isel({dim: places})


def _at_hand(X: Any) -> bool:
    """Whether all values are in memory or in a Dask graph; others would be read by stacking."""
    each = X.data_vars.values() if hasattr(X, "data_vars") else [X]
    return all(one.variable._in_memory or one.chunks is not None for one in each)
