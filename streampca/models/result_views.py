"""A decomposition to be looked at: its spectrum as text, all of it as an xarray Dataset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.models.genotype_numbers import genotype_tables
from streampca.models.value_attributes import of_map, of_series, of_values

if TYPE_CHECKING:
    from streampca.models.decomposition import Decomposition

UNDETERMINED = 1.0  # radians: a component whose angle is only bounded by more may point anywhere


def spectrum_table(result: Decomposition, rows: int) -> str:
    """The leading part of the spectrum, one component a line, with the bounds of each."""
    head = f"{'component':>9} {'variance':>12} {'share':>8} {'cumulative':>10}"
    certificate = result.certificate
    head += "" if certificate is None else f" {'+-':>14} {'angle <=':>14}"
    lines = [head]
    shares = result.explained_variance_ratio
    for i in range(min(rows, result.n_components)):
        line = (
            f"{i + 1:>9} {result.explained_variance[i]:>12.6g} {shares[i]:>8.2%} "
            f"{shares[: i + 1].sum():>10.2%}"
        )
        if certificate is not None:
            line += _stated(certificate.variance_bound[i], result.explained_variance[i])
            line += _stated(certificate.angle_bound[i], UNDETERMINED)
        lines.append(line)
    if result.n_components > rows:
        lines.append(f"      ... {result.n_components - rows} more")
    return "\n".join(lines)


def _stated(bound: float, most: float) -> str:
    """A bound, in a column of the table, where it says something."""
    return f" {bound:>14.1e}" if bound < most else f" {'not determined':>14}"


def dataset_of(result: Decomposition) -> Any:
    """An xarray.Dataset of all arrays with their labels: see ``Decomposition.to_xarray``."""
    from streampca.sources.labelled_results import to_dataset

    component, features = result.component_axis, result.labels.features
    mean = np.array(result.mean)
    mean[result.dropped] = np.nan
    tables: dict[str, tuple[Array, list[AxisLabels]]] = {
        "explained_variance": (result.explained_variance, [component]),
        "explained_variance_ratio": (result.explained_variance_ratio, [component]),
        "mean": (mean, [features]),
    }
    if result.components is not None:
        components = np.array(result.components)
        components[:, result.dropped] = np.nan
        tables["components"] = (components, [component, features])
    if result.scores is not None:
        tables["scores"] = (result.scores, [result.labels.samples, component])
    for name in ("row_mean", "row_scale"):
        if (values := getattr(result, name)) is not None:
            tables[name] = (values, [result.labels.samples])
    told: dict[str, Any] = {
        "mean": partial(of_values, result.labels),
        "components": partial(of_map, result, what="components (as they are) of", power=0),
        "scores": of_series(result, "scores of", 1),
        "explained_variance": of_series(result, "variances of the scores of", 2),
        "explained_variance_ratio": of_series(result, "shares of the total variance of", 0),
    }
    attributes = {"method": result.method, "n_samples": result.n_samples}
    if result.method == "GenotypePCA":
        tables |= genotype_tables(result, component)
        attributes["n_features_used"] = result.n_features_used
    return to_dataset(tables, attributes, told)
