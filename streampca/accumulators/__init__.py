"""What a pass remembers: mergeable summaries, one statistic per file."""

from streampca.accumulators.alternating_step import AlternatingStep
from streampca.accumulators.base import OPEN_BLOCKS, Accumulator
from streampca.accumulators.cross_moments import CrossMoments
from streampca.accumulators.cross_product import CrossProduct
from streampca.accumulators.feature_posterior import FeaturePosterior
from streampca.accumulators.feature_projection import FeatureProjection
from streampca.accumulators.filled_step import FilledStep
from streampca.accumulators.gram import Gram
from streampca.accumulators.held_out import HeldOutError
from streampca.accumulators.latent_equations import LatentEquations
from streampca.accumulators.leading_directions import LeadingDirections
from streampca.accumulators.moments import Moments
from streampca.accumulators.observed_power import ObservedPower
from streampca.accumulators.r_factor import RFactor
from streampca.accumulators.reconstruction import Reconstruction
from streampca.accumulators.row_information import RowInformation
from streampca.accumulators.row_missing import RowMissing
from streampca.accumulators.row_spread import RowSpread
from streampca.accumulators.scatter import Scatter
from streampca.accumulators.scatter_imputed import MeanImputedScatter
from streampca.accumulators.subspace_step import SubspaceStep
from streampca.accumulators.truncated_factor import TruncatedFactor
from streampca.accumulators.two_way_step import TwoWayStep

__all__ = [
    "OPEN_BLOCKS",
    "Accumulator",
    "AlternatingStep",
    "CrossMoments",
    "CrossProduct",
    "FeaturePosterior",
    "FeatureProjection",
    "FilledStep",
    "Gram",
    "HeldOutError",
    "LatentEquations",
    "LeadingDirections",
    "MeanImputedScatter",
    "Moments",
    "ObservedPower",
    "RFactor",
    "Reconstruction",
    "RowInformation",
    "RowMissing",
    "RowSpread",
    "Scatter",
    "SubspaceStep",
    "TruncatedFactor",
    "TwoWayStep",
]
