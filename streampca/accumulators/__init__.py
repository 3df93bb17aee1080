"""What a pass remembers: mergeable summaries, one statistic per file."""

from streampca.accumulators.alternating_step import AlternatingStep
from streampca.accumulators.base import OPEN_BLOCKS, Accumulator
from streampca.accumulators.factors import RFactor, TruncatedFactor
from streampca.accumulators.filled_step import FilledStep
from streampca.accumulators.kernel_step import KernelStep
from streampca.accumulators.krylov import LeadingDirections, SubspaceStep
from streampca.accumulators.latent import FeaturePosterior, LatentEquations, RowInformation
from streampca.accumulators.moments import CrossMoments, Moments, RowMissing
from streampca.accumulators.neighbours import NearestDistances
from streampca.accumulators.observed import HeldOutError, ObservedPower, RowSpread
from streampca.accumulators.paired import PairedGram, PairedStep
from streampca.accumulators.products import CrossProduct, Gram, MeanImputedScatter
from streampca.accumulators.projection import FeatureDistances, FeatureProjection, Reconstruction
from streampca.accumulators.scatter import FoldScatter, Scatter
from streampca.accumulators.two_way_step import TwoWayStep

__all__ = [
    "OPEN_BLOCKS",
    "Accumulator",
    "AlternatingStep",
    "CrossMoments",
    "CrossProduct",
    "FeatureDistances",
    "FeaturePosterior",
    "FeatureProjection",
    "FilledStep",
    "FoldScatter",
    "Gram",
    "HeldOutError",
    "KernelStep",
    "LatentEquations",
    "LeadingDirections",
    "MeanImputedScatter",
    "Moments",
    "NearestDistances",
    "ObservedPower",
    "PairedGram",
    "PairedStep",
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
