"""``streampca.load``: a saved model, ready to transform."""

from __future__ import annotations

import os

from streampca.models.completion.completion import Completion
from streampca.models.completion.hard_impute import HardImpute
from streampca.models.completion.soft_impute import SoftImpute
from streampca.models.decomposition import Decomposition
from streampca.models.genotypes.genotype_pca import GenotypePCA
from streampca.models.latent.factor_analysis import FactorAnalysis
from streampca.models.latent.ppca import PPCA
from streampca.models.linear import attach
from streampca.models.pca.pca import PCA
from streampca.models.pca.rotated_pca import RotatedPCA, rotated_from
from streampca.models.pca.truncated_svd import TruncatedSVD
from streampca.models.rotated import RotatedDecomposition
from streampca.store import StoredVersion, VersionStore, is_bundle, open_backend, understood

Loaded = PCA | GenotypePCA | TruncatedSVD | FactorAnalysis | PPCA | HardImpute | SoftImpute
KINDS: dict[str, type[Loaded]] = {
    "FactorAnalysis": FactorAnalysis,
    "GenotypePCA": GenotypePCA,
    "HardImpute": HardImpute,
    "PPCA": PPCA,
    "SoftImpute": SoftImpute,
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
OF_A_PROCESS = ("scheduler", "progress", "checkpoint", "scratch", "rates")  # never from a file

Model = Loaded | RotatedPCA


def load(path: str | os.PathLike[str]) -> Model:
    """The model that ``save`` wrote, or the promoted one of a model store: a fitted estimator.

    Every file is checked against its digest. Raises SourceError where one is absent or altered,
    or the format is newer than this version reads.
    """
    place = os.fspath(path)
    if "://" in place or not is_bundle(place):
        store = VersionStore(open_backend(place))
        if store.exists():
            return store.read_current(model_of)
    return estimator_of(Decomposition.load(place))


def model_of(version: StoredVersion) -> Model:
    """The fitted estimator of a version of a model store."""
    return estimator_of(result_of(version))


def result_of(version: StoredVersion) -> Decomposition:
    """The decomposition of a version of a model store."""
    return Decomposition.from_saved(*version.read("model"), f"version {version.number}")


def estimator_of(result: Decomposition) -> Model:
    """A fitted estimator with this result, and the settings that made it.

    Where it computes, and where it writes meanwhile, is not taken from a saved model. Raises
    SourceError where the settings are not of such an estimator.
    """
    with understood("the saved model"):
        if isinstance(result, RotatedDecomposition):
            return rotated_from(result)
        kind = KINDS.get(result.method, PCA)
        known = set(kind().get_params()).difference(NOT_KEPT if kind is GenotypePCA else ())
        known -= set(OF_A_PROCESS)
        model = kind(**{name: value for name, value in result.settings.items() if name in known})
        attach(model, result)
        if isinstance(model, Completion):
            model.restore()
        return model
