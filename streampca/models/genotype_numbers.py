"""The numbers of a genotype fit under the names of genetics, from its Decomposition alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import Column
from streampca.matrix.columns import Mapped


def eigenvalues(result: Any) -> Array:
    """(k,) of the relationship matrix ZZ'/M, M variants used (PLINK's .eigenval)."""
    freedom = max(result.weight - result.ddof, 0.0)
    return np.asarray(result.explained_variance * freedom / max(result.n_features_used, 1))


def eigenvectors(result: Any) -> Array:
    """(n, k) scores divided by the singular values: unit columns over the fitted samples."""
    singular = result.singular_values
    return np.asarray(result.scores / np.where(singular > 0, singular, 1.0))


def frequencies(result: Any) -> Array:
    """(p,) of the counted allele among the calls of the fitted samples; NaN without a call."""
    return np.asarray(frequency_column(result))


def frequency_column(result: Any) -> Any:
    """The same, lazy if the fit stored its means with streamed components."""
    if isinstance(result.mean, Column):
        of_calls = partial(_of_calls, n=result.n_samples, ploidy=ploidy_of(result))
        return Mapped(of_calls, np.float64, result.mean, result.missing)
    values = np.array(result.mean) / ploidy_of(result)
    values[result.dropped] = np.nan
    return values


def _of_calls(mean: Array, missing: Array, n: int, ploidy: int) -> Array:
    return np.where(missing < n, mean / ploidy, np.nan)


def observed_alleles(result: Any) -> Any:
    """(p,) alleles that the frequencies were counted from: ploidy times the calls."""
    count = partial(_count_alleles, n=result.n_samples, ploidy=ploidy_of(result))
    if isinstance(result.missing, Column):
        return Mapped(count, np.int64, result.missing)
    lost = np.zeros(result.n_features, np.int64) if result.missing is None else result.missing
    return count(lost)


def _count_alleles(missing: Array, n: int, ploidy: int) -> Array:
    return np.asarray(ploidy * (n - missing))


def ploidy_of(result: Any) -> int:
    """The largest number of copies in a call."""
    return int(result.settings.get("ploidy", 2))


def used_variants(result: Any) -> Array:
    """(p,) True for the M variants that the fit used: not dropped, constant or filtered."""
    used = np.ones(result.n_features, np.bool_)
    for left_out in (result.dropped, result.constant, result.filtered):
        used[left_out] = False
    return used


def genotype_tables(result: Any, component: Any) -> dict[str, tuple[Array, list[Any]]]:
    """Name -> (values, labels of their axes) of the variables that ``to_xarray`` adds for
    genotypes.

    component : labels of the components.
    """
    samples, variants = result.labels.samples, result.labels.features
    tables: dict[str, tuple[Array, list[Any]]] = {
        "eigenvalues": (eigenvalues(result), [component]),
        "frequency": (frequencies(result), [variants]),
        "observed_alleles": (np.asarray(observed_alleles(result)), [variants]),
        "used": (used_variants(result), [variants]),
    }
    if result.scores is not None:
        tables["eigenvectors"] = (eigenvectors(result), [samples, component])
    for name in ("fitted", "missing_by_sample"):
        if (values := getattr(result, name)) is not None:
            tables[name] = (values, [samples])
    try:
        p_value = result.tracy_widom().p_value[: result.n_components]
    except InvalidInputError:  # the components hold all of the variance
        return tables
    return tables | {"tracy_widom_p": (p_value, [component])}
