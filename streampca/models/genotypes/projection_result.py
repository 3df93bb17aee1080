"""New samples on the components of a genotype model: scores, and what they rest on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.text import label_array
from streampca.models.genotypes.variant_matching import VariantMatch
from streampca.passes import PassCost, Plan


@dataclass(frozen=True, repr=False)
class GenotypeProjection:
    """New samples on the components of a genotype model.

    scores : (n, k) float64, NaN for samples that show too little.
    coverage : (n,) share of the model's variants that are observed in each sample.
    loading_coverage : (n, k) share of each component's squared loadings that is; None with
        missing="mean".
    match : which variants were found, and how their alleles are written.
    samples : labels.  plan, cost : the pass that was made.
    """

    scores: Array
    coverage: Array
    loading_coverage: Array | None
    match: VariantMatch
    samples: AxisLabels
    missing: str
    shrinkage: str | None
    plan: Plan
    cost: PassCost

    def __post_init__(self) -> None:
        for one in fields(self):
            if isinstance(value := getattr(self, one.name), np.ndarray):
                frozen = value.view()
                frozen.flags.writeable = False
                object.__setattr__(self, one.name, frozen)

    @property
    def refused(self) -> Array:
        """(n,) True for samples without scores."""
        return np.asarray(np.isnan(self.scores).any(axis=1))

    def columns(self) -> dict[str, Array]:
        """Columns of a table, one row per sample: ids, PC1, PC2, ..., coverage."""
        ids = {name: np.asarray(values) for name, values in self.samples.coords.items()}
        ids = ids or {self.samples.dims[0]: label_array(self.samples.names())}
        scores = {f"PC{i + 1}": column for i, column in enumerate(self.scores.T)}
        return {**self.samples.extra, **ids, **scores, "coverage": self.coverage}

    def to_xarray(self) -> Any:
        """``scores`` (sample, component) and ``coverage`` (sample), as an xarray.Dataset."""
        from streampca.sources.labelled_results import to_dataset

        k = self.scores.shape[1]
        component = AxisLabels.plain("component", k, list(range(1, k + 1)))
        tables: dict[str, tuple[Array, list[AxisLabels]]] = {
            "scores": (self.scores, [self.samples, component]),
            "coverage": (self.coverage, [self.samples]),
        }
        if self.loading_coverage is not None:
            tables["loading_coverage"] = (self.loading_coverage, [self.samples, component])
        how = {"missing": self.missing, "shrinkage": self.shrinkage or "none"}
        return to_dataset(tables, {**how, **self.match.to_dict()})

    def __repr__(self) -> str:
        n, k = self.scores.shape
        return f"<GenotypeProjection: {n} samples on {k} components, {self.match}>"
