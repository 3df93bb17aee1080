"""Whether the features of new data are those of the fit, in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.columns import as_text, is_among, label_array

ALLELES = ("counted_allele", "other_allele")
UNKNOWN = ("0", ".", "")  # an allele that nobody carried


def check_same_features(came: AxisLabels, fitted: AxisLabels) -> None:
    """Refuse other features than those of the fit, or another order, where both have names.

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
    """What finds a model's variants among others, where both sides are variants; else nothing."""
    if not all(set(ALLELES) <= set(one.extra) for one in (came, fitted)):
        return ""
    return (
        ". Variants and their alleles are matched by streampca.project_samples(model.result_, X), "
        "on the command line by `streampca project`"
    )


def _check_alleles(came: AxisLabels, fitted: AxisLabels) -> None:
    """Refuse variants of which another allele is counted: their scores would have another sign."""
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
    """Strings in an array that compares without regard to how it stores them."""
    if values.dtype.kind in "UT":
        return values
    return label_array([str(v) for v in values])
