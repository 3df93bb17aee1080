"""The array calls of the inner loops: all that a GPU lane would have to replace."""

from streampca.kernels.blas import (
    Array,
    add_product,
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
from streampca.kernels.pages import give_back, pages, zeros

__all__ = [
    "Array",
    "ColumnStats",
    "add_exactly",
    "add_product",
    "column_stats",
    "give_back",
    "leading_rows",
    "mirror_lower",
    "pages",
    "pieces",
    "probe",
    "provisional_mean",
    "rank_k_update",
    "rank_one_update",
    "reciprocal",
    "row_pieces",
    "side_by_side",
    "symmetrize",
    "triangular_factor",
    "zeros",
]
