"""What is asked of a completion: ranks and penalties, solver, where to begin and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from numbers import Integral, Real
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, side_by_side
from streampca.matrix import ChunkedMatrix, Standardize
from streampca.models.by_name import refuse_masked
from streampca.models.given import sample_weights
from streampca.models.iteration import seed_of

SOLVERS = ("auto", "als", "impute", "exact")
FITTED = "fitted"  # means of the columns that belong to the model
BOTH = "both"  # rows and columns
MEANS_ALONE = " (the means alone are PCA(0, missing='mean'))"
TURNS = 3  # share of the passes that their means and scales may take: a third
REASONS = {
    "als": "rows and columns solved exactly in turn: the fewest passes, and no old factors needed",
    "impute": "one step of subspace iteration on the filled matrix per pass",
    "exact": "the leading eigenvectors of the filled matrix in every pass",
}


@dataclass(frozen=True)
class Task:
    """A completion, checked.

    ranks, ridges : of the candidates, all fitted in the same passes.
    soft : singular values are lowered by the ridge; else they are cut off at the rank.
    means : those of the columns are fitted too, so that the completed matrix has them.
    weights : (n,) of the samples, or None.
    both : rows and columns are centred, by turns.  both_scaled : and scaled.
    init : (scores (n, r), loadings (p, r)) of a first estimate, either None; or None.
    """

    ranks: tuple[int, ...]
    ridges: tuple[float, ...]
    soft: bool
    solver: str
    standardize: Standardize
    means: bool
    tol: float
    max_passes: int
    seed: int
    validation: Any = None
    early_stop: bool = False
    init: tuple[Array | None, Array | None] | None = None
    memory_limit: int | str | None = None
    both: bool = False
    both_scaled: bool = False
    weights: Array | None = None

    @property
    def roots(self) -> Array | None:
        """(n,) roots of the weights: what a row counts for the factors of a repeated one."""
        return None if self.weights is None else np.sqrt(self.weights)

    @property
    def turns(self) -> int:
        """Passes that find means and scales of rows and columns, at most; 0 where none is asked."""
        return self.max_passes // TURNS if self.both else 0

    @property
    def total(self) -> int:
        """R, columns of the factors of all candidates side by side."""
        return sum(self.ranks)

    @property
    def parts(self) -> list[slice]:
        """Where each candidate's factors lie."""
        return side_by_side(self.ranks)

    @property
    def filled(self) -> bool:
        """Whether sweeps fill the holes with the estimate before."""
        return self.solver != "als"


def make_task(
    settings: dict[str, Any], matrix: ChunkedMatrix, soft: bool, sample_weight: Any = None
) -> Task:
    """The task of an estimator's parameters for this matrix. Raises InvalidInputError."""
    n, p = matrix.shape
    ranks = _several(settings["rank"], "rank", Integral, 1, MEANS_ALONE)
    name = "lambda_" if soft else "ridge"
    ridges = _several(settings[name], name, Real, 0)
    for rank in ranks:
        if rank > min(n, p):
            raise InvalidInputError(
                f"rank={rank} for a matrix of {n} x {p}; expected at most {min(n, p)}, and less "
                "where anything is to be completed"
            )
    several = len(ranks) * len(ridges) > 1
    if several and settings["validation"] is None:
        raise InvalidInputError(
            f"{len(ranks) * len(ridges)} candidates and no cells to judge them by; add "
            "validation=0.05, a share of the observed cells that is held out"
        )
    if not several and settings["early_stop"] and settings["validation"] is None:
        raise InvalidInputError("early_stop=True needs cells to judge by; add validation=0.05")
    solver = settings["solver"]
    if solver not in SOLVERS:
        raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
    solver = "als" if solver == "auto" else solver
    if not soft and solver != "als" and any(ridges):
        raise InvalidInputError(
            f"ridge={settings['ridge']!r} with solver={solver!r}: only solver='als' has a ridge; "
            "SoftImpute(lambda_=) shrinks with every solver"
        )
    _check_limits(settings)
    pairs, center = list(product(ranks, ridges)), settings["center"]
    if center == FITTED and (solver != "als" or several or any(ridges)):
        raise InvalidInputError(
            f"center={FITTED!r} takes solver='als', one rank and no penalty; else center=True"
        )
    return Task(
        tuple(int(rank) for rank, _ in pairs),
        tuple(float(ridge) for _, ridge in pairs),
        soft,
        solver,
        Standardize(center=bool(center), scale=None if center == BOTH else settings["scale"]),
        center == FITTED,
        float(settings["tol"]),
        int(settings["max_passes"]),
        seed_of(settings["random_state"]),
        settings["validation"],
        bool(settings["early_stop"]),
        _initial(settings["init"], matrix.shape),
        settings["memory_limit"],
        center == BOTH,
        settings["scale"] == BOTH,
        sample_weights(sample_weight, matrix),
    )


def _several(value: Any, name: str, kind: type, least: float, hint: str = "") -> tuple[Any, ...]:
    """A number or a list of numbers as a tuple."""
    several = tuple(value) if isinstance(value, (list, tuple, np.ndarray)) else (value,)
    for one in several:
        wrong = isinstance(one, bool) or not isinstance(one, kind)
        if wrong or not least <= one < np.inf:
            words = "a number from 1" if kind is Integral else "a number from 0"
            raise InvalidInputError(f"{name}={value!r}; expected {words}, or a list of such{hint}")
    if not several:
        raise InvalidInputError(f"{name}={value!r}; expected one or more")
    return several


def _check_limits(settings: dict[str, Any]) -> None:
    tol, most = settings["tol"], settings["max_passes"]
    if isinstance(tol, bool) or not isinstance(tol, (int, float, np.number)) or not 0 <= tol < 1:
        raise InvalidInputError(f"tol={tol!r}; expected a relative change, 0 <= tol < 1")
    if isinstance(most, bool) or not isinstance(most, Integral) or most < 3:
        raise InvalidInputError(f"max_passes={most!r}; expected 3 or more: a look and two sweeps")
    center, scale = settings["center"], settings["scale"]
    if scale not in (None, "std", BOTH):
        raise InvalidInputError(f"scale={scale!r}; expected None, 'std' or {BOTH!r}")
    if center not in (True, False, FITTED, BOTH):
        raise InvalidInputError(f"center={center!r}; expected True, False, {FITTED!r} or {BOTH!r}")
    if (scale == BOTH) > (center == BOTH) or (center == BOTH and scale == "std"):
        raise InvalidInputError(
            f"scale={scale!r} with center={center!r}: deviations of rows and columns are about "
            f"the means of both, those of columns about theirs; use center={BOTH!r} with "
            f"scale={BOTH!r} or None, or center=True with scale='std'"
        )
    if center == BOTH and most < 2 * TURNS:
        raise InvalidInputError(
            f"max_passes={most} with center={BOTH!r}; expected {2 * TURNS} or more: two turns for "
            "the means of rows and columns, then sweeps"
        )


def _initial(init: Any, shape: tuple[int, int]) -> tuple[Array | None, Array | None] | None:
    """(scores, loadings) of a first estimate, from arrays or from something fitted."""
    if init is None:
        return None
    result = getattr(init, "result_", init)
    if hasattr(result, "require_components"):
        scores, loadings = result.scores, result.require_components().T
    elif isinstance(init, tuple) and len(init) == 2:
        for one in init:
            refuse_masked(one, "init")
        scores, loadings = (np.asarray(one, np.float64) for one in init)
    else:
        raise InvalidInputError(
            f"init of {type(init).__name__}; expected (scores (n, r), loadings (p, r)), or a "
            "fitted model"
        )
    for name, one, length in (("scores", scores, shape[0]), ("loadings", loadings, shape[1])):
        if one is not None and (one.ndim != 2 or len(one) != length):
            raise InvalidInputError(f"init: {name} of shape {one.shape}; expected {length} rows")
    return scores, loadings
