"""What it means: one estimator per file, and the frozen result."""

from streampca.models.by_name import variable_weights
from streampca.models.completion.hard_impute import HardImpute
from streampca.models.completion.soft_impute import SoftImpute
from streampca.models.covariance import correlation, covariance
from streampca.models.decomposition import Decomposition
from streampca.models.latent.factor_analysis import FactorAnalysis
from streampca.models.latent.factor_result import FactorDecomposition
from streampca.models.latent.ppca import PPCA
from streampca.models.latent.ppca_fit import ProbabilisticDecomposition
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.pca.pca import PCA
from streampca.models.pca.rotated_pca import RotatedDecomposition, RotatedPCA, rotate
from streampca.models.pca.truncated_svd import TruncatedSVD

__all__ = [
    "PCA",
    "PPCA",
    "Decomposition",
    "FactorAnalysis",
    "FactorDecomposition",
    "HardImpute",
    "IncrementalPCA",
    "ProbabilisticDecomposition",
    "RotatedDecomposition",
    "RotatedPCA",
    "SoftImpute",
    "TruncatedSVD",
    "correlation",
    "covariance",
    "rotate",
    "variable_weights",
]
