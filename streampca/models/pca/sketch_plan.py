"""The plan of a PCA from one look."""

from __future__ import annotations

from streampca.accumulators import LeadingDirections, Moments
from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.request import Request
from streampca.passes import Candidate, pass_spec
from streampca.solvers import known_count

WIDTH = 64  # directions kept, at least; four times as many as components


def sketch_candidate(matrix: ChunkedMatrix, request: Request) -> Candidate:
    """One pass over samples that keeps a few directions.

    Raises InvalidInputError for request that need the statistics of the whole matrix first.
    """
    n, p = matrix.shape
    k = known_count(request.n_components, n, p)
    if not k or request.n_components is None:
        raise InvalidInputError(
            f"svd_solver='sketch' needs a number of components from 1, not "
            f"n_components={request.n_components!r}"
        )
    beside = request.side
    wanted = {
        "scale": request.scale,
        "missing='mean'": request.missing == "mean",
        "remove": beside.basis is not None,
        "weights of features": beside.weights is not None,
    }
    if refused := [name for name, value in wanted.items() if value]:
        raise InvalidInputError(
            f"svd_solver='sketch' takes one look, and {', '.join(refused)} must be known before "
            "it; use svd_solver='randomized', which reads again"
        )
    directions = sketch_directions(request, k, min(n, p))
    width = directions.width
    taken = LeadingDirections.rows_at_once(width)
    flops = 2.0 * n * p * (width + taken) * (taken + 2 * width) / taken
    spec = pass_spec(
        "sketch",
        matrix,
        0,
        {"directions": directions, "columns": Moments()},
        flops=flops,
        work="skinny",
        thin=not matrix.sparse,
    )
    reason = f"one look; the {width} leading directions are kept, and what is cut off is bounded"
    solve = {
        "directions": 2 * width * p * 8,
        "components": 2 * k * p * 8,
        "column statistics": 12 * p * 8,
    }
    return Candidate("sketch", reason, (spec,), solve)


def sketch_directions(request: Request, k: int, most: int) -> LeadingDirections:
    """The empty accumulator of the look."""
    return LeadingDirections(
        streamed=0,
        standardize=request.standardize,
        width=min(max(WIDTH, 4 * k), most),
        missing=request.missing,
    )
