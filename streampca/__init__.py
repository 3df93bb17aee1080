"""Out-of-core PCA and its relatives: exact, in as few passes as possible, in planned memory."""

from typing import TYPE_CHECKING

from streampca import errors
from streampca.errors import StreamPCAError
from streampca.imported import on_first_use
from streampca.registration import register_with_xarray

if TYPE_CHECKING:
    from streampca import embedding as embedding
    from streampca import plots as plots
    from streampca import preprocess
    from streampca.accumulators import Accumulator
    from streampca.embedding.embed import Embedding, embed
    from streampca.genetics.filters import VariantFilter
    from streampca.genetics.genotype_pca import GenotypePCA
    from streampca.genetics.ld_pruning import prune_ld
    from streampca.genetics.projection import project_samples
    from streampca.matrix import Block, ChunkedMatrix
    from streampca.model_store.model_store import ModelStore, load
    from streampca.models.completion.impute import HardImpute, SoftImpute
    from streampca.models.decompose.covariance import correlation, covariance
    from streampca.models.eof.hilbert import analytic, complex_modes
    from streampca.models.eof.lags import lagged
    from streampca.models.eof.variable_weights import variable_weights
    from streampca.models.explore.anndata_results import write_anndata
    from streampca.models.explore.intrinsic_dimension import intrinsic_dimension
    from streampca.models.explore.r2_baselines import r2_baselines
    from streampca.models.explore.random_projection import RandomProjection
    from streampca.models.kernel.feature_maps import map_features, random_fourier
    from streampca.models.kernel.kernel_pca import KernelPCA
    from streampca.models.kernel.nystroem_pca import NystroemPCA
    from streampca.models.latent.factor_analysis import FactorAnalysis
    from streampca.models.latent.factor_result import FactorDecomposition
    from streampca.models.latent.ppca import PPCA
    from streampca.models.latent.ppca_fit import ProbabilisticDecomposition
    from streampca.models.pca.incremental_pca import IncrementalPCA
    from streampca.models.pca.pca import PCA
    from streampca.models.pca.rotated_pca import RotatedDecomposition, RotatedPCA, rotate
    from streampca.models.pca.truncated_svd import TruncatedSVD
    from streampca.models.regression.principal_regression import PrincipalComponentRegression
    from streampca.models.regression.total_least_squares import TotalLeastSquares
    from streampca.models.results.decomposition import Decomposition, PrincipalComponents
    from streampca.models.side_data.row_weights import relative_weights
    from streampca.models.sparse.sparse_pca import SparsePCA
    from streampca.models.text.counting import open_texts
    from streampca.models.text.lsa import LSA
    from streampca.models.two_views.cca import CCA
    from streampca.models.two_views.cross_correlation import cross_correlation
    from streampca.models.two_views.mca import MCA
    from streampca.passes import Advance, Plan
    from streampca.sources import append, commit_rows, open, open_images
    from streampca.sources.joining import concat_features, concat_samples
    from streampca.sources.ratings.opening import open_ratings
    from streampca.version import __version__
else:  # the same, each when it is first used
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "streampca.embedding": "",
            "streampca.plots": "",
            "streampca.preprocess": "",
            "streampca.accumulators": "Accumulator",
            "streampca.embedding.embed": "Embedding embed",
            "streampca.genetics.filters": "VariantFilter",
            "streampca.genetics.genotype_pca": "GenotypePCA",
            "streampca.genetics.ld_pruning": "prune_ld",
            "streampca.genetics.projection": "project_samples",
            "streampca.matrix": "Block ChunkedMatrix",
            "streampca.sources.joining": "concat_features concat_samples",
            "streampca.models.explore.anndata_results": "write_anndata",
            "streampca.models.eof.variable_weights": "variable_weights",
            "streampca.models.two_views.cca": "CCA",
            "streampca.models.completion.impute": "HardImpute SoftImpute",
            "streampca.models.decompose.covariance": "correlation covariance",
            "streampca.models.two_views.cross_correlation": "cross_correlation",
            "streampca.models.results.decomposition": "Decomposition PrincipalComponents",
            "streampca.models.kernel.feature_maps": "map_features random_fourier",
            "streampca.models.eof.hilbert": "analytic complex_modes",
            "streampca.models.explore.intrinsic_dimension": "intrinsic_dimension",
            "streampca.models.kernel.kernel_pca": "KernelPCA",
            "streampca.models.eof.lags": "lagged",
            "streampca.models.latent.factor_analysis": "FactorAnalysis",
            "streampca.models.latent.factor_result": "FactorDecomposition",
            "streampca.models.latent.ppca": "PPCA",
            "streampca.models.latent.ppca_fit": "ProbabilisticDecomposition",
            "streampca.models.two_views.mca": "MCA",
            "streampca.models.kernel.nystroem_pca": "NystroemPCA",
            "streampca.models.pca.incremental_pca": "IncrementalPCA",
            "streampca.models.pca.pca": "PCA",
            "streampca.models.pca.rotated_pca": "RotatedDecomposition RotatedPCA rotate",
            "streampca.models.pca.truncated_svd": "TruncatedSVD",
            "streampca.models.regression.principal_regression": "PrincipalComponentRegression",
            "streampca.models.explore.r2_baselines": "r2_baselines",
            "streampca.models.explore.random_projection": "RandomProjection",
            "streampca.models.side_data.row_weights": "relative_weights",
            "streampca.models.sparse.sparse_pca": "SparsePCA",
            "streampca.models.text.counting": "open_texts",
            "streampca.models.text.lsa": "LSA",
            "streampca.models.regression.total_least_squares": "TotalLeastSquares",
            "streampca.model_store.model_store": "ModelStore load",
            "streampca.passes": "Advance Plan",
            "streampca.sources": "append commit_rows open open_images",
            "streampca.sources.ratings.opening": "open_ratings",
            "streampca.version": "__version__",
        },
    )

__all__ = [
    "CCA",
    "LSA",
    "MCA",
    "PCA",
    "PPCA",
    "Accumulator",
    "Advance",
    "Block",
    "ChunkedMatrix",
    "Decomposition",
    "Embedding",
    "FactorAnalysis",
    "FactorDecomposition",
    "GenotypePCA",
    "HardImpute",
    "IncrementalPCA",
    "KernelPCA",
    "ModelStore",
    "NystroemPCA",
    "Plan",
    "PrincipalComponentRegression",
    "PrincipalComponents",
    "ProbabilisticDecomposition",
    "RandomProjection",
    "RotatedDecomposition",
    "RotatedPCA",
    "SoftImpute",
    "SparsePCA",
    "StreamPCAError",
    "TotalLeastSquares",
    "TruncatedSVD",
    "VariantFilter",
    "__version__",
    "analytic",
    "append",
    "commit_rows",
    "complex_modes",
    "concat_features",
    "concat_samples",
    "correlation",
    "covariance",
    "cross_correlation",
    "embed",
    "errors",
    "intrinsic_dimension",
    "lagged",
    "load",
    "map_features",
    "open",
    "open_images",
    "open_ratings",
    "open_texts",
    "preprocess",
    "project_samples",
    "prune_ld",
    "r2_baselines",
    "random_fourier",
    "relative_weights",
    "rotate",
    "variable_weights",
    "write_anndata",
]

register_with_xarray()
