"""The array calls of the inner loops: all that a GPU lane would have to replace."""

from streampca.kernels.blas import (
    Array,
    add_product,
    lower_product,
    mirror_lower,
    rank_k_update,
    rank_one_update,
    symmetrize,
    triangular_factor,
)
from streampca.kernels.columns import (
    ColumnStats,
    add_exactly,
    column_stats,
    leading_rows,
    pieces,
    probe,
    provisional_mean,
    reciprocal,
    row_pieces,
    side_by_side,
)
from streampca.kernels.pages import pages, zeros
from streampca.kernels.probing import (
    CONFIDENCE,
    PROBES,
    norm_estimate,
    probe_vectors,
    probed_product,
    sum_error,
)

__all__ = [
    "CONFIDENCE",
    "PROBES",
    "Array",
    "ColumnStats",
    "add_exactly",
    "add_product",
    "column_stats",
    "leading_rows",
    "lower_product",
    "mirror_lower",
    "norm_estimate",
    "pages",
    "pieces",
    "probe",
    "probe_vectors",
    "probed_product",
    "provisional_mean",
    "rank_k_update",
    "rank_one_update",
    "reciprocal",
    "row_pieces",
    "side_by_side",
    "sum_error",
    "symmetrize",
    "triangular_factor",
    "zeros",
]
