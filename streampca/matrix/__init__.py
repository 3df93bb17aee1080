"""The matrix that every method sees: blocks along one axis, labels, joins, standardisation."""

from streampca.matrix.block import Block, Resolution, stored_eps, work_dtype
from streampca.matrix.chunked_matrix import (
    ChunkedMatrix,
    ReadCount,
    SpanCache,
    current_cache,
    reading_with,
    regular_edges,
)
from streampca.matrix.columns import Column
from streampca.matrix.components import component_axis
from streampca.matrix.derived import FeatureWeights, Logarithm, RowLengths, RowTotals
from streampca.matrix.join import concat_features, concat_samples
from streampca.matrix.labels import AxisLabels, Labels
from streampca.matrix.location import Location, SpotCheck, spot_checks
from streampca.matrix.mapped import FeatureMap, FourierFeatures, MappedMatrix, RowFunction
from streampca.matrix.pair import VIEWS, Pair, PairedMatrix, paired
from streampca.matrix.preprocessing import RAW, Preprocessing
from streampca.matrix.select import ChosenFeatures, select
from streampca.matrix.standardize import (
    ALLELE_SCALES,
    SCALES,
    Scaling,
    Standardize,
    constant_columns,
    found,
    residual_block,
    weighted_divisors,
)
from streampca.matrix.tiles import Tile

__all__ = [
    "ALLELE_SCALES",
    "RAW",
    "SCALES",
    "VIEWS",
    "AxisLabels",
    "Block",
    "ChosenFeatures",
    "ChunkedMatrix",
    "Column",
    "FeatureMap",
    "FeatureWeights",
    "FourierFeatures",
    "Labels",
    "Location",
    "Logarithm",
    "MappedMatrix",
    "Pair",
    "PairedMatrix",
    "Preprocessing",
    "ReadCount",
    "Resolution",
    "RowFunction",
    "RowLengths",
    "RowTotals",
    "Scaling",
    "SpanCache",
    "SpotCheck",
    "Standardize",
    "Tile",
    "component_axis",
    "concat_features",
    "concat_samples",
    "constant_columns",
    "current_cache",
    "found",
    "paired",
    "reading_with",
    "regular_edges",
    "residual_block",
    "select",
    "spot_checks",
    "stored_eps",
    "weighted_divisors",
    "work_dtype",
]
