"""The ways to a PCA, one row each: how it is planned, and what is made of its passes.

A plan names its solver, and runs by the same row. To add a way: a file with its two functions, and
a row here; ``auto`` takes it in by its predicted time (:mod:`streampca.models.pca.plan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streampca.matrix import ChunkedMatrix
from streampca.models.fitted import Fitted, SolverInput
from streampca.models.pca.gram import gram_by_features, gram_candidate
from streampca.models.pca.krylov import krylov
from streampca.models.pca.krylov_plan import krylov_candidates
from streampca.models.pca.panels import gram_by_panels, panel_candidates
from streampca.models.pca.scatter import (
    scatter_candidate,
    solve_scatter,
    solve_tsqr,
    tsqr_candidate,
)
from streampca.models.pca.sketch import sketch, sketch_candidate
from streampca.models.request import Request
from streampca.passes import Candidate


@dataclass(frozen=True)
class Route:
    """One way to a PCA.

    candidates : its plans for a matrix, the most generous first; the pass that declares an
        accumulator in them is the one that folds it.
    solve : runs those passes, and solves.
    """

    candidates: Callable[[ChunkedMatrix, Request], list[Candidate]]
    solve: Callable[[SolverInput], Fitted]


ROUTES = {
    "scatter": Route(lambda *asked: [scatter_candidate(*asked)], solve_scatter),
    "tsqr": Route(lambda *asked: [tsqr_candidate(*asked)], solve_tsqr),
    "gram": Route(lambda *asked: [gram_candidate(*asked)], gram_by_features),
    "gram by panels": Route(panel_candidates, gram_by_panels),
    "krylov": Route(krylov_candidates, krylov),
    "sketch": Route(lambda *asked: [sketch_candidate(*asked)], sketch),
}
