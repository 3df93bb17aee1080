"""``streampca demo``: make data with known structure, analyse them, check the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import MissingDependencyError
from streampca.kernels import Array
from streampca.models.pca.pca import PCA
from streampca.sources.genotypes.allele_counts import MISSING_CALL
from streampca.sources.genotypes.simulate import GenotypeRecipe, write_genotypes


@dataclass
class Demo:
    """What a demonstration did: the model, scores and a label of each sample, and a check."""

    model: PCA
    scores: Array
    labels: Array
    check: str


SHOWN = 10  # components of a demonstration


def genotype_demo(
    folder: Path,
    recipe: GenotypeRecipe,
    *,
    memory_limit: int | str | None = None,
    progress: Any = None,
    writing: Callable[[int, int], None] | None = None,
) -> Demo:
    """Write ``folder/genotypes.zarr`` and fit it; the planted populations are the check."""
    path = folder / "genotypes.zarr"
    folder.mkdir(parents=True, exist_ok=True)
    write_genotypes(path, recipe, overwrite=True, progress=writing)
    model = PCA(
        SHOWN,
        scale="std",
        missing="mean",
        missing_value=MISSING_CALL,
        memory_limit=memory_limit,
        progress=progress,
    )
    model.fit(str(path))
    labels = recipe.population_of
    leading = recipe.populations - 1
    scores = np.asarray(model.result_.scores)[:, : min(leading, SHOWN)]
    share = nearest_centroid_share(scores, labels)
    check = (
        f"{share:.1%} of the samples lie nearest to the centre of the population they were drawn "
        f"from, on the first {scores.shape[1]} components"
    )
    names = np.array([f"population {i + 1}" for i in labels])
    return Demo(model, np.asarray(model.result_.scores), names, check)


def digits_demo(*, progress: Any = None) -> Demo:
    """scikit-learn's 1797 handwritten digits, and its own PCA of them as the check."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.decomposition import PCA as Reference
    except ImportError:
        raise MissingDependencyError(
            "the digits come with scikit-learn: pip install scikit-learn"
        ) from None
    digits = load_digits()
    model = PCA(SHOWN, progress=progress).fit(digits.data)
    reference = Reference(SHOWN, svd_solver="full").fit(digits.data)
    ratio = model.explained_variance_ / reference.explained_variance_
    check = (
        f"largest relative difference from scikit-learn's full SVD: {np.abs(ratio - 1).max():.1e}"
    )
    labels = np.array([str(t) for t in digits.target])
    return Demo(model, model.transform(digits.data), labels, check)


def nearest_centroid_share(scores: Array, labels: Array) -> float:
    """Share of rows that are nearest to the mean of their own label."""
    kinds = np.unique(labels)
    centres = np.stack([scores[labels == kind].mean(axis=0) for kind in kinds])
    distance = np.linalg.norm(scores[:, None, :] - centres[None, :, :], axis=2)
    return float(np.mean(kinds[np.argmin(distance, axis=1)] == labels))
