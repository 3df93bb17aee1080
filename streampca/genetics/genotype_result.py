"""Principal components of allele counts, under the names of genetics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Column
from streampca.matrix.columns import Mapped
from streampca.models.results.decomposition import PrincipalComponents


@dataclass(frozen=True, repr=False, kw_only=True)
class GenotypeComponents(PrincipalComponents, kind="genotype model"):
    """Principal components of allele counts, also under the names of genetics."""

    @property
    def eigenvalues(self) -> Array:
        """(k,) of the relationship matrix ZZ'/M, M variants used (PLINK's .eigenval)."""
        freedom = max(self.weight - self.ddof, 0.0)
        return np.asarray(self.explained_variance * freedom / max(self.n_features_used, 1))

    @property
    def eigenvectors(self) -> Array:
        """(n, k) scores divided by the singular values: unit columns over the fitted samples."""
        singular = self.singular_values
        return np.asarray(self.scores / np.where(singular > 0, singular, 1.0))

    @property
    def frequencies(self) -> Array:
        """(p,) of the counted allele among the calls of the fitted samples; NaN without a call."""
        return np.asarray(self.frequency_column)

    @property
    def frequency_column(self) -> Any:
        """The same, lazy if the fit stored its means with streamed components."""
        ploidy = ploidy_of(self)
        if isinstance(self.mean, Column):
            of_calls = partial(_of_calls, n=self.n_samples, ploidy=ploidy)
            return Mapped(of_calls, np.float64, self.mean, self.missing)
        values = np.array(self.mean) / ploidy
        values[self.dropped] = np.nan
        return values

    @property
    def observed_alleles(self) -> Any:
        """(p,) alleles that the frequencies were counted from: ploidy times the calls."""
        count = partial(_count_alleles, n=self.n_samples, ploidy=ploidy_of(self))
        if isinstance(self.missing, Column):
            return Mapped(count, np.int64, self.missing)
        lost = np.zeros(self.n_features, np.int64) if self.missing is None else self.missing
        return count(lost)

    def in_dataset(self) -> tuple[dict[str, tuple[Array, list[AxisLabels]]], dict[str, Any]]:
        """Eigenvalues, frequencies, the variants used, and the like."""
        samples, variants = self.labels.samples, self.labels.features
        component = self.component_axis
        tables: dict[str, tuple[Array, list[AxisLabels]]] = {
            "eigenvalues": (self.eigenvalues, [component]),
            "frequency": (self.frequencies, [variants]),
            "observed_alleles": (np.asarray(self.observed_alleles), [variants]),
            "used": (used_variants(self), [variants]),
        }
        if self.scores is not None:
            tables["eigenvectors"] = (self.eigenvectors, [samples, component])
        for name in ("fitted", "missing_by_sample"):
            if (values := getattr(self, name)) is not None:
                tables[name] = (values, [samples])
        try:
            p_value = self.tracy_widom().p_value[: self.n_components]
        except InvalidInputError:  # the components hold all of the variance
            pass
        else:
            tables["tracy_widom_p"] = (p_value, [component])
        return tables, {"n_features_used": self.n_features_used}


def ploidy_of(result: Any) -> int:
    """The largest number of copies in a call."""
    return int(result.settings.get("ploidy", 2))


def used_variants(result: Any) -> Array:
    """(p,) True for the M variants that the fit used: not dropped, constant or filtered."""
    used = np.ones(result.n_features, np.bool_)
    for left_out in (result.dropped, result.constant, result.filtered):
        used[left_out] = False
    return used


def _of_calls(mean: Array, missing: Array, n: int, ploidy: int) -> Array:
    return np.where(missing < n, mean / ploidy, np.nan)


def _count_alleles(missing: Array, n: int, ploidy: int) -> Array:
    return np.asarray(ploidy * (n - missing))
