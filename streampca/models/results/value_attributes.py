"""Attributes of labelled results: long name, units, and the variable that they belong to.

Everything about the variable stands in attributes of its own, ``variable`` (its name) and
``variable_<attribute>`` (units, standard_name and whatever else it had), since a unit or a
standard name of the field is not that of an EOF. Values are numbers, text and lists of these, so
that NetCDF and Zarr take them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streampca.matrix import Labels
from streampca.models.results.result import Result

ONE = "1"  # the unit of a number without dimension (UDUNITS)
HOW = (
    "as they are",
    "divided by the root of the eigenvalue",
    "multiplied by the root of the eigenvalue",
)  # by scaling
OF_ANOTHER_UNIT = ("units", "standard_name")  # of a field that was preprocessed
TEXT = (str, bytes, np.str_, np.bytes_)

Units = str | None  # None: not known


def of_map(result: Result, variable: str | None, what: str, power: int) -> dict[str, Any]:
    """Attributes of maps of one variable, over its features.

    variable : its name, where the data have several.  what : the maps are.
    power : of the unit of the variable, as it was decomposed, in their unit.
    """
    unit = ONE if result.standardised else unit_of(result.labels, variable)
    return _attributes(result, [variable], what, product((unit, power)))


def of_covariance(result: Result, variable: str | None, scaling: int) -> dict[str, Any]:
    """Attributes of covariances of PCs of this scaling with the data of one variable."""
    pcs = unit_of_scores(result), (1, 0, 2)[scaling]
    units = product((unit_of(result.labels, variable), 1), pcs)
    what = f"covariances of the PCs ({HOW[scaling]}) with"
    return _attributes(result, [variable], what, units, weighted=False)


def of_pattern(result: Result, variable: str | None, what: str) -> dict[str, Any]:
    """Attributes of maps in the units of the data.  what : they are."""
    unit = product((unit_of(result.labels, variable), 1))
    return _attributes(result, [variable], what, unit, weighted=False)


def of_correlation(result: Result, variable: str | None) -> dict[str, Any]:
    """Attributes of correlations of PCs with the data of one variable."""
    return _attributes(result, [variable], "correlations of the PCs with", ONE, weighted=False)


def of_series(result: Result, what: str, power: int) -> dict[str, Any]:
    """Attributes of numbers that belong to all variables: PCs (power 1), variances (2), shares (0).

    what : they are.  power : of the unit of a score in their unit.
    """
    variables: Sequence[str | None] = list(result.labels.features.parts) or [None]
    return _attributes(result, variables, what, product((unit_of_scores(result), power)))


def of_values(labels: Labels, variable: str | None) -> dict[str, Any]:
    """Attributes of values of the variable itself: reconstructed or imputed rows.

    Of preprocessed values the unit of the raw ones is not theirs.
    """
    attrs = dict(labels.attrs_of(str(variable)))
    return {k: v for k, v in attrs.items() if not labels.preprocessing or k not in OF_ANOTHER_UNIT}


# -- units -----------------------------------------------------------------------------------------


def unit_of(labels: Labels, variable: str | None) -> Units:
    """The unit of a variable, if it has one."""
    unit = of_values(labels, variable).get("units")
    return unit.strip() or ONE if isinstance(unit, str) else None


def unit_of_scores(result: Result) -> Units:
    """The unit of a projection: that of all variables, if they share it; 1 where standardised."""
    if result.standardised:
        return ONE
    parts: Sequence[str | None] = list(result.labels.features.parts) or [None]
    units = {unit_of(result.labels, part) for part in parts}
    return units.pop() if len(units) == 1 else None


def product(*factors: tuple[Units, int]) -> Units:
    """The unit of a product of powers of units; None where one of them is not known."""
    powers: dict[str, int] = {}
    for unit, power in factors:
        if power and unit is None:
            return None
        if power and unit is not None and unit != ONE:
            powers[unit] = powers.get(unit, 0) + power
    return " ".join(_power(unit, power) for unit, power in powers.items() if power) or ONE


def _power(unit: str, power: int) -> str:
    if power == 1:
        return unit
    return f"{unit}{power}" if re.fullmatch("[A-Za-z]+", unit) else f"({unit}){power}"


# -- inside ----------------------------------------------------------------------------------------


def _attributes(
    result: Result, variables: Sequence[str | None], what: str, units: Units, weighted: bool = True
) -> dict[str, Any]:
    labels = result.labels
    names = [variable if variable is not None else labels.name for variable in variables]
    attrs: dict[str, Any] = {"long_name": f"{what} {_named(labels, variables)}".strip()}
    if units is not None:
        attrs["units"] = units
    attrs["method"] = result.method
    if weighted and result.weighted:
        attrs["comment"] = "of the variable times the weights of the fit"
    if known := [str(name) for name in names if name is not None]:
        attrs["variable"] = ", ".join(known)
    if len(variables) == 1:
        own = labels.attrs_of(str(variables[0]))
        attrs |= {f"variable_{name}": plain_attribute(value) for name, value in own.items()}
    return attrs


def _named(labels: Labels, variables: Sequence[str | None]) -> str:
    """The long names of variables, or their names."""
    found = []
    for one in variables:
        own = labels.attrs_of(str(one)).get("long_name", labels.name if one is None else one)
        found.append("the data" if own is None else str(own))
    return ", ".join(found)


def plain_attribute(value: Any) -> Any:
    """A number, a text or a list of these, as NetCDF and Zarr hold them."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (int, float, np.integer, np.floating)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (list, tuple)):
        items = [plain_attribute(one) for one in value]
        numbers = all(isinstance(item, (int, float)) for item in items)
        return items if numbers and items else ", ".join(map(str, items))
    if isinstance(value, TEXT):
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "" if value is None else repr(value) if isinstance(value, Mapping) else str(value)
