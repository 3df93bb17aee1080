"""What the dense eigenproblems of a PCA need: bytes by what they are, and flops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.matrix import ChunkedMatrix
from streampca.models.request import Request
from streampca.passes import Candidate
from streampca.solvers import known_count

SEARCHED = ("searched space", "images of the space")  # terms of an iteration


def kept_count(matrix: ChunkedMatrix, request: Request) -> int:
    """How many components are kept, as far as the request say; else all that there can be."""
    n, p = matrix.shape
    return known_count(request.n_components, n, p) or min(n, p)


def eigh_cost(m: int, request: Request, k: int) -> tuple[dict[str, int], float]:
    """(bytes beside the matrix, flops) of the eigenproblem of size m."""
    everything = _all_pairs(m, request, k)
    matrices = 4 if everything else 0  # the leading ones are computed in place
    terms = {"eigenproblem": matrices * m * m * 8, "eigenvectors": 3 * m * (k + 1) * 8}
    return terms, (9.0 if everything else 4 / 3) * m**3


def scatter_cost(p: int, request: Request, k: int) -> tuple[dict[str, int], float]:
    """(bytes beside the accumulator, flops) of solving a scatter matrix."""
    terms, flops = eigh_cost(p, request, k)
    filters = request.standardize.filters
    copied = request.scale or filters or request.missing == "mean"
    if copied or request.side.weights is not None:
        terms["scaled scatter"] = p * p * 8
    return terms, flops


def sample_space_nbytes(matrix: ChunkedMatrix, request: Request, k: int) -> int:
    """What is held while loadings are computed: eigenvectors, scores, statistics of the columns."""
    return vectors_nbytes(matrix, request, k) + 20 * matrix.shape[1] * 8


def vectors_nbytes(matrix: ChunkedMatrix, request: Request, k: int) -> int:
    """Of those the eigenvectors and scores."""
    n = matrix.shape[0]
    vectors = n if _all_pairs(n, request, k) else k + 1
    return n * (vectors + 3 * k) * 8


def with_kept_sums(candidate: Candidate) -> Candidate:
    """The candidate with what ``warm_start`` keeps for the next fit: a copy of the sums of the
    first pass, and the searched space, beside the one that goes on from it."""
    first, *others = candidate.passes
    terms = candidate.solve_nbytes
    kept = first.total_nbytes + sum(first.kept.values())
    kept += sum(terms.get(name, 0) for name in SEARCHED)
    passes = (first, *(replace(one, kept_nbytes=one.kept_nbytes + kept) for one in others))
    return replace(candidate, passes=passes, solve_nbytes={**terms, "kept for the next fit": kept})


def _all_pairs(m: int, request: Request, k: int) -> bool:
    """Whether all m eigenpairs may be computed."""
    return not isinstance(request.n_components, (int, np.integer)) or k + 1 >= m
