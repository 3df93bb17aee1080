"""Small dense algebra: spectra, ranks, signs, certificates. No labels, no scheduling."""

from streampca.solvers.certificate import (
    Certificate,
    certify,
    certify_ritz,
    coherent_rounding,
    entry_rounding,
    of_products,
    product_floor,
    rank_floor,
    residual_norms,
    rounding_floor,
    solver_floor,
    sum_floor,
    undetermined_after,
)
from streampca.solvers.components import (
    TRACY_WIDOM,
    by_gap,
    by_share,
    check_n_components,
    known_count,
    numerical_rank,
)
from streampca.solvers.factor_likelihood import FactorSolution, maximum_likelihood
from streampca.solvers.factor_model import FactorModel
from streampca.solvers.factor_surrogate import FactorPoint, FactorSurrogate, solution_of
from streampca.solvers.factors import (
    balanced,
    change_of_both,
    relative_change,
    singular_form,
)
from streampca.solvers.krylov import KrylovSpace, Ritz, orthonormalised, start_block
from streampca.solvers.latent_step import LatentState, expanded_step, expansion, solve_columns
from streampca.solvers.minka import MLE, by_mle
from streampca.solvers.rotation import Rotation, promax, rotate_loadings, varimax, varimax_of_r
from streampca.solvers.signs import signs, signs_of_components
from streampca.solvers.spectrum import LARGEST, Spectrum, eigh_lower, orthonormal_columns, svd_of_r
from streampca.solvers.tracy_widom import (
    TracyWidom,
    count_significant,
    tracy_widom_sf,
    tracy_widom_test,
)

__all__ = [
    "LARGEST",
    "MLE",
    "TRACY_WIDOM",
    "Certificate",
    "FactorModel",
    "FactorPoint",
    "FactorSolution",
    "FactorSurrogate",
    "KrylovSpace",
    "LatentState",
    "Ritz",
    "Rotation",
    "Spectrum",
    "TracyWidom",
    "balanced",
    "by_gap",
    "by_mle",
    "by_share",
    "certify",
    "certify_ritz",
    "change_of_both",
    "check_n_components",
    "coherent_rounding",
    "count_significant",
    "eigh_lower",
    "entry_rounding",
    "expanded_step",
    "expansion",
    "known_count",
    "maximum_likelihood",
    "numerical_rank",
    "of_products",
    "orthonormal_columns",
    "orthonormalised",
    "product_floor",
    "promax",
    "rank_floor",
    "relative_change",
    "residual_norms",
    "rotate_loadings",
    "rounding_floor",
    "signs",
    "signs_of_components",
    "singular_form",
    "solution_of",
    "solve_columns",
    "solver_floor",
    "start_block",
    "sum_floor",
    "svd_of_r",
    "tracy_widom_sf",
    "tracy_widom_test",
    "undetermined_after",
    "varimax",
    "varimax_of_r",
]
