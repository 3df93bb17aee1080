"""What it means: one estimator per file, and the frozen result."""

from streampca.models.covariance import correlation, covariance
from streampca.models.decomposition import Decomposition
from streampca.models.factor_analysis import FactorAnalysis
from streampca.models.factor_result import FactorDecomposition
from streampca.models.genotype_filters import VariantFilter
from streampca.models.genotype_pca import GenotypePCA
from streampca.models.hard_impute import HardImpute
from streampca.models.incremental_pca import IncrementalPCA
from streampca.models.pca import PCA
from streampca.models.ppca import PPCA
from streampca.models.ppca_result import ProbabilisticDecomposition
from streampca.models.rotated import RotatedDecomposition
from streampca.models.rotated_pca import RotatedPCA, rotate
from streampca.models.soft_impute import SoftImpute
from streampca.models.truncated_svd import TruncatedSVD
from streampca.models.variable_weights import variable_weights

__all__ = [
    "PCA",
    "PPCA",
    "Decomposition",
    "FactorAnalysis",
    "FactorDecomposition",
    "GenotypePCA",
    "HardImpute",
    "IncrementalPCA",
    "ProbabilisticDecomposition",
    "RotatedDecomposition",
    "RotatedPCA",
    "SoftImpute",
    "TruncatedSVD",
    "VariantFilter",
    "correlation",
    "covariance",
    "rotate",
    "variable_weights",
]
