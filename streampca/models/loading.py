"""``streampca.load``: a saved model, ready to transform."""

from __future__ import annotations

import os

from streampca.models.decomposition import Decomposition
from streampca.models.linear import attach
from streampca.models.pca import PCA


def load(path: str | os.PathLike[str]) -> PCA:
    """The model that ``save`` wrote: a fitted estimator with the same results.

    Every file is checked against its digest. Raises SourceError where one is absent or altered,
    or the format is newer than this version reads.
    """
    result = Decomposition.load(path)
    known = PCA().get_params()
    model = PCA(**{k: v for k, v in result.settings.items() if k in known})
    attach(model, result)
    return model
