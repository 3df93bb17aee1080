"""Out-of-core PCA and its relatives: exact, in as few passes as possible, in planned memory."""

from streampca import errors, preprocess
from streampca.accumulators import Accumulator
from streampca.errors import StreamPCAError
from streampca.genetics.filters import VariantFilter
from streampca.genetics.genotype_pca import GenotypePCA
from streampca.genetics.ld_pruning import prune_ld
from streampca.genetics.projection import project_samples
from streampca.matrix import Block, ChunkedMatrix, concat_features, concat_samples
from streampca.models import (
    PCA,
    PPCA,
    Decomposition,
    FactorAnalysis,
    FactorDecomposition,
    HardImpute,
    IncrementalPCA,
    ProbabilisticDecomposition,
    RotatedDecomposition,
    RotatedPCA,
    SoftImpute,
    TruncatedSVD,
    correlation,
    covariance,
    rotate,
    variable_weights,
)
from streampca.models.anndata_results import write_anndata
from streampca.models.cca import CCA
from streampca.models.cross_correlation import cross_correlation
from streampca.models.intrinsic_dimension import intrinsic_dimension
from streampca.models.kernel_pca import KernelPCA
from streampca.models.mca import MCA
from streampca.models.random_projection import RandomProjection
from streampca.models.sparse_pca import SparsePCA
from streampca.operations.model_store import ModelStore, load
from streampca.passes import Advance, Plan
from streampca.registration import register_with_xarray
from streampca.sources import append, commit_rows, open
from streampca.version import __version__

__all__ = [
    "CCA",
    "MCA",
    "PCA",
    "PPCA",
    "Accumulator",
    "Advance",
    "Block",
    "ChunkedMatrix",
    "Decomposition",
    "FactorAnalysis",
    "FactorDecomposition",
    "GenotypePCA",
    "HardImpute",
    "IncrementalPCA",
    "KernelPCA",
    "ModelStore",
    "Plan",
    "ProbabilisticDecomposition",
    "RandomProjection",
    "RotatedDecomposition",
    "RotatedPCA",
    "SoftImpute",
    "SparsePCA",
    "StreamPCAError",
    "TruncatedSVD",
    "VariantFilter",
    "__version__",
    "append",
    "commit_rows",
    "concat_features",
    "concat_samples",
    "correlation",
    "covariance",
    "cross_correlation",
    "errors",
    "intrinsic_dimension",
    "load",
    "open",
    "preprocess",
    "project_samples",
    "prune_ld",
    "rotate",
    "variable_weights",
    "write_anndata",
]


register_with_xarray()


def __getattr__(name: str) -> object:
    if name == "plots":  # Matplotlib is loaded with the first picture
        from importlib import import_module

        return import_module("streampca.plots")
    raise AttributeError(f"module 'streampca' has no attribute {name!r}")
