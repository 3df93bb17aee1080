"""``streampca.load``: a saved model, ready to transform."""

from __future__ import annotations

import os

from streampca.errors import SourceError
from streampca.models.decomposition import Decomposition
from streampca.models.linear import LinearModel
from streampca.models.pca.rotated_pca import rotated_from
from streampca.models.registry import KINDS
from streampca.models.rotated import RotatedDecomposition
from streampca.store import StoredVersion, VersionStore, is_bundle, open_backend, understood


def load(path: str | os.PathLike[str]) -> LinearModel:
    """The model that ``save`` wrote, or the promoted one of a model store: a fitted estimator.

    Every file is checked against its digest. Raises SourceError where one is absent or altered,
    or the format is newer than this version reads.
    """
    place = os.fspath(path)
    if "://" in place or not is_bundle(place):
        store = VersionStore(open_backend(place))
        if store.exists():
            result: LinearModel = store.read_current(model_of)
            return result
    return estimator_of(Decomposition.load(place))


def model_of(version: StoredVersion) -> LinearModel:
    """The fitted estimator of a version of a model store."""
    return estimator_of(result_of(version))


def result_of(version: StoredVersion) -> Decomposition:
    """The decomposition of a version of a model store."""
    return Decomposition.from_saved(*version.read("model"), f"version {version.number}")


def estimator_of(result: Decomposition) -> LinearModel:
    """A fitted estimator with this result, and the settings that made it.

    Where it computes, and where it writes meanwhile, is not taken from a saved model. Raises
    SourceError where the settings are not of such an estimator.
    """
    with understood("the saved model"):
        if isinstance(result, RotatedDecomposition):
            return rotated_from(result)
        if result.estimator not in KINDS:
            known = ", ".join(sorted(KINDS))
            raise SourceError(
                f"the saved model is a {result.estimator!r:.80}; known here: {known}. "
                "Import the package that defines it, or update streampca"
            )
        made: LinearModel = KINDS[result.estimator].from_result(result)
        return made
