"""The public names, as type checkers read them. Each loads from its module on first use."""

from streampca import embedding as embedding
from streampca import errors as errors
from streampca import plots as plots
from streampca import preprocess as preprocess
from streampca.accumulators import Accumulator as Accumulator
from streampca.certification.certify import certify as certify
from streampca.certification.report import Certification as Certification
from streampca.embedding.embed import Embedding as Embedding
from streampca.embedding.embed import embed as embed
from streampca.errors import StreamPCAError as StreamPCAError
from streampca.genetics.filters import VariantFilter as VariantFilter
from streampca.genetics.genotype_pca import GenotypePCA as GenotypePCA
from streampca.genetics.kinship import kinship as kinship
from streampca.genetics.kinship_result import Kinship as Kinship
from streampca.genetics.kinship_strips import Relatives as Relatives
from streampca.genetics.kinship_strips import relatives as relatives
from streampca.genetics.ld_pruning import prune_ld as prune_ld
from streampca.genetics.pc_relate import AdjustedKinship as AdjustedKinship
from streampca.genetics.pc_relate import pc_relate as pc_relate
from streampca.genetics.pcair import SamplePartition as SamplePartition
from streampca.genetics.pcair import pcair_partition as pcair_partition
from streampca.genetics.projection import project_samples as project_samples
from streampca.genetics.relationship import Relationship as Relationship
from streampca.genetics.relationship import grm as grm
from streampca.matrix import Block as Block
from streampca.matrix import ChunkedMatrix as ChunkedMatrix
from streampca.matrix.components import set_options as set_options
from streampca.model_store.model_store import ModelStore as ModelStore
from streampca.model_store.model_store import load as load
from streampca.models.completion.impute import HardImpute as HardImpute
from streampca.models.completion.impute import SoftImpute as SoftImpute
from streampca.models.coupled.complex_pairs import ComplexCPCCA as ComplexCPCCA
from streampca.models.coupled.complex_pairs import ComplexPairs as ComplexPairs
from streampca.models.coupled.multiset_cca import MultisetCCA as MultisetCCA
from streampca.models.coupled.multiset_cca import MultisetResult as MultisetResult
from streampca.models.decompose.covariance import correlation as correlation
from streampca.models.decompose.covariance import covariance as covariance
from streampca.models.eof.complex_eof import ComplexEOF as ComplexEOF
from streampca.models.eof.complex_result import ComplexDecomposition as ComplexDecomposition
from streampca.models.eof.complex_rotation import (
    RotatedComplexDecomposition as RotatedComplexDecomposition,
)
from streampca.models.eof.complex_rotation import RotatedComplexEOF as RotatedComplexEOF
from streampca.models.eof.geographic import LocalComponents as LocalComponents
from streampca.models.eof.geographic import local_components as local_components
from streampca.models.eof.hilbert import analytic as analytic
from streampca.models.eof.lags import lagged as lagged
from streampca.models.eof.noise import NoiseTest as NoiseTest
from streampca.models.eof.noise import noise_test as noise_test
from streampca.models.eof.oscillation import OscillationPatterns as OscillationPatterns
from streampca.models.eof.oscillation import oscillation_patterns as oscillation_patterns
from streampca.models.eof.persistence import PersistentPatterns as PersistentPatterns
from streampca.models.eof.persistence import persistent_patterns as persistent_patterns
from streampca.models.eof.significance import CorrelationMaps as CorrelationMaps
from streampca.models.eof.significance import correlation_maps as correlation_maps
from streampca.models.eof.variable_weights import variable_weights as variable_weights
from streampca.models.explore.anndata_results import write_anndata as write_anndata
from streampca.models.explore.bootstrap import bootstrap as bootstrap
from streampca.models.explore.bootstrap import sampling_errors as sampling_errors
from streampca.models.explore.intrinsic_dimension import intrinsic_dimension as intrinsic_dimension
from streampca.models.explore.jackknife import jackknife as jackknife
from streampca.models.explore.monitor import Monitor as Monitor
from streampca.models.explore.monitor import monitor as monitor
from streampca.models.explore.monitor import outliers as outliers
from streampca.models.explore.r2_baselines import r2_baselines as r2_baselines
from streampca.models.explore.random_projection import RandomProjection as RandomProjection
from streampca.models.explore.sample_certainty import SampleCertainty as SampleCertainty
from streampca.models.kernel.feature_maps import map_features as map_features
from streampca.models.kernel.feature_maps import random_fourier as random_fourier
from streampca.models.kernel.kernel_pca import KernelPCA as KernelPCA
from streampca.models.kernel.nystroem_pca import NystroemPCA as NystroemPCA
from streampca.models.latent.factor_analysis import FactorAnalysis as FactorAnalysis
from streampca.models.latent.factor_result import FactorDecomposition as FactorDecomposition
from streampca.models.latent.ppca import PPCA as PPCA
from streampca.models.latent.ppca_fit import (
    ProbabilisticDecomposition as ProbabilisticDecomposition,
)
from streampca.models.pca.incremental_pca import IncrementalPCA as IncrementalPCA
from streampca.models.pca.pca import PCA as PCA
from streampca.models.pca.rotated_pca import RotatedDecomposition as RotatedDecomposition
from streampca.models.pca.rotated_pca import RotatedPCA as RotatedPCA
from streampca.models.pca.rotated_pca import rotate as rotate
from streampca.models.pca.truncated_svd import TruncatedSVD as TruncatedSVD
from streampca.models.regression.principal_regression import (
    PrincipalComponentRegression as PrincipalComponentRegression,
)
from streampca.models.regression.total_least_squares import TotalLeastSquares as TotalLeastSquares
from streampca.models.results.decomposition import Decomposition as Decomposition
from streampca.models.results.decomposition import PrincipalComponents as PrincipalComponents
from streampca.models.side_data.row_weights import relative_weights as relative_weights
from streampca.models.sparse.sparse_pca import SparsePCA as SparsePCA
from streampca.models.text.counting import open_texts as open_texts
from streampca.models.text.lsa import LSA as LSA
from streampca.models.two_views.cca import CCA as CCA
from streampca.models.two_views.cpcca import CPCCA as CPCCA
from streampca.models.two_views.cross_correlation import cross_correlation as cross_correlation
from streampca.models.two_views.mca import MCA as MCA
from streampca.models.two_views.rotated_views import RotatedTwoViewResult as RotatedTwoViewResult
from streampca.passes import Advance as Advance
from streampca.passes import Plan as Plan
from streampca.sources import append as append
from streampca.sources import commit_rows as commit_rows
from streampca.sources import open as open
from streampca.sources import open_images as open_images
from streampca.sources.joining import concat_features as concat_features
from streampca.sources.joining import concat_samples as concat_samples
from streampca.sources.ratings.opening import open_ratings as open_ratings
from streampca.version import __version__ as __version__
