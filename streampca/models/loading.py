"""``streampca.load``: a saved model, ready to transform."""

from __future__ import annotations

import os

from streampca.models.decomposition import Decomposition
from streampca.models.factor_analysis import FactorAnalysis
from streampca.models.genotype_pca import GenotypePCA
from streampca.models.linear import attach
from streampca.models.pca import PCA
from streampca.models.rotated import RotatedDecomposition
from streampca.models.rotated_pca import RotatedPCA, rotated_from
from streampca.models.truncated_svd import TruncatedSVD

Loaded = PCA | GenotypePCA | TruncatedSVD | FactorAnalysis
KINDS: dict[str, type[Loaded]] = {
    "FactorAnalysis": FactorAnalysis,
    "GenotypePCA": GenotypePCA,
    "TruncatedSVD": TruncatedSVD,
}  # others load as PCA
NOT_KEPT = (
    "variants",
    "keep",
    "remove",
    "fit_samples",
    "relationship",
    "loadings",
)  # lists, not settings


def load(path: str | os.PathLike[str]) -> Loaded | RotatedPCA:
    """The model that ``save`` wrote: a fitted estimator with the same results.

    Every file is checked against its digest. Raises SourceError where one is absent or altered,
    or the format is newer than this version reads.
    """
    result = Decomposition.load(path)
    if isinstance(result, RotatedDecomposition):
        return rotated_from(result)
    kind = KINDS.get(result.method, PCA)
    known = set(kind().get_params()).difference(NOT_KEPT if kind is GenotypePCA else ())
    model = kind(**{name: value for name, value in result.settings.items() if name in known})
    attach(model, result)
    return model
