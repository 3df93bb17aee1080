"""How much of the variance k numbers explain: components, random directions, chosen features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import scipy

from streampca.accumulators import MeanImputedScatter, Scatter
from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal, symmetrize
from streampca.matrix import AxisLabels, ChunkedMatrix, Resolution, Standardize
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.decompose.scatter import stats_of_sums
from streampca.models.explore.random_projection import RandomMatrix
from streampca.passes import (
    Candidate,
    PassCost,
    PassResult,
    Running,
    choose,
    execute,
    pass_spec,
    single_threaded_blas,
)
from streampca.solvers import eigh_lower
from streampca.solvers.canonical import independent
from streampca.sources import as_matrix, counted

MOST = 50  # numbers that are looked at, where nothing is said
DEPENDENT = 1e-10  # share of its variance that is left of a direction that others determine
RECONSTRUCTIONS = ("projection", "regression")
PCA_CURVE, VARIANCE = "PCA", "highest-variance features"
DRAWN = ("random projection", "random features")


@dataclass(frozen=True)
class R2Baselines:
    """What :func:`r2_baselines` returns.

    curves : (k + 1,) R^2 of 0, 1, ..., k numbers, by name: "PCA", "random projection", "random
        features", "highest-variance features"; of what is drawn, the mean over draws.
    spread : (k + 1,) standard deviation over draws, of the two that are drawn.
    reconstruction : how rows were made again.  features : labels of the highest-variance features.
    cost : of the pass.
    """

    curves: Mapping[str, Array]
    spread: Mapping[str, Array]
    reconstruction: str
    features: list[str]
    cost: list[PassCost] = field(default_factory=list)
    picture: ClassVar[str] = "baselines"  # of ``streampca.plots``

    @property
    def n_components(self) -> int:
        """k, the most numbers that were looked at."""
        return len(self.curves[PCA_CURVE]) - 1

    def to_xarray(self) -> Any:
        """A Dataset: ``r2`` and ``standard_deviation`` by curve and number of components."""
        from streampca.sources.labelled.to_xarray import to_dataset

        k = self.n_components
        axes = [
            AxisLabels(("curve",), (len(self.curves),), {"curve": np.array(list(self.curves))}),
            AxisLabels(("n_components",), (k + 1,), {"n_components": np.arange(k + 1)}),
        ]
        spread = [self.spread.get(name, np.zeros(k + 1)) for name in self.curves]
        tables = {
            "r2": (np.array(list(self.curves.values())), axes),
            "standard_deviation": (np.array(spread), axes),
        }
        return to_dataset(tables, {"reconstruction": self.reconstruction})

    def __repr__(self) -> str:
        k = self.n_components
        shown = sorted({1, 2, 5, 10, 20, 50, k} & set(range(1, k + 1)))
        lines = [f"{'R^2 of':>26} " + " ".join(f"{one:>7}" for one in shown)]
        for name, curve in self.curves.items():
            lines.append(f"{name:>26} " + " ".join(f"{curve[one]:>7.2%}" for one in shown))
        return "\n".join(lines)


def r2_baselines(
    X: Any,
    n_components: int | None = None,
    *,
    reconstruction: str = "projection",
    scale: str | None = None,
    missing: str = "raise",
    n_draws: int = 20,
    random_state: Any = 0,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> R2Baselines:
    """R^2(k) of PCA, random projection, random features and highest-variance features.

    X : (n, p), anything that ``streampca.open`` takes.
    n_components : the most numbers k by which a row is replaced; None: at most 50.
    reconstruction : how a row is made again from its k numbers. "projection": by the same
        directions, so that features that were not kept hold their mean; "regression": by the best
        linear map, so that kept features tell of those that are like them. PCA's are the same.
    scale, missing, dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.
    n_draws : random directions, and random choices of features, over which curves are averaged.

    R^2 is 1 - |X - reconstructed X|^2 / |X - mean|^2, over the rows that were read. Under
    "projection" that of random directions is k / p in the mean, whatever the data are.
    ``streampca.plots.baselines`` draws them.
    Cost: one pass, n p^2 flops, 5 p^2 float64, and 4 p^2 k flops a draw.
    Raises InvalidInputError, NonFiniteError (missing cells), MemoryLimitError.
    Source: Jolliffe 2002, "Principal Component Analysis", sections 2.1 and 6.3 (property A5).

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import r2_baselines
    >>> X = np.random.default_rng(0).normal(size=(100, 5)) * [3, 2, 1, 1, 1]
    >>> found = r2_baselines(X, 2, n_draws=3)
    >>> found.curves['PCA'].round(1)
    array([0. , 0.5, 0.8])
    >>> found.curves['highest-variance features'].round(1)
    array([0. , 0.5, 0.8])
    """
    matrix = as_matrix(counted(X), dim=dim, missing_value=missing_value)
    n, p = matrix.shape
    k = min(MOST, p, max(n - 1, 1)) if n_components is None else n_components
    k, n_draws = whole_number("n_components", k, 1, p), whole_number("n_draws", n_draws)
    for name, value, known in (
        ("reconstruction", reconstruction, RECONSTRUCTIONS),
        ("scale", scale, (None, "std")),
        ("missing", missing, ("raise", "mean")),
    ):
        if value not in known:
            raise InvalidInputError(f"{name}={value!r}; expected one of {known}")
    seed = seed_of(random_state)
    running = Running(memory_limit, scheduler, progress)
    scatter, cost = _summed(matrix, k, missing, running)
    with single_threaded_blas():
        S, order = _standardised(scatter, matrix, scale)
        found = _Carried(S, reconstruction == "regression")
        drawn = {name: _drawn(found, name, k, n_draws, seed) for name in DRAWN}
        kept = found.of(_columns(order[:k], p))
        curves = {PCA_CURVE: found.of_components(k)}
    curves |= {name: one.mean(axis=0) for name, one in drawn.items()} | {VARIANCE: kept}
    spread = {name: one.std(axis=0, ddof=min(1, n_draws - 1)) for name, one in drawn.items()}
    names = matrix.labels.features.names(order[:k].tolist())
    return R2Baselines(curves, spread, reconstruction, list(names), [cost])


def _summed(matrix: ChunkedMatrix, k: int, missing: str, running: Running) -> tuple[Any, PassCost]:
    """The scatter of X, and what it cost to read."""
    n, p = matrix.shape
    sums: Any = Scatter() if missing == "raise" else MeanImputedScatter()
    spec = pass_spec("scatter", matrix, 0, {"s": sums}, flops=float(n) * p * p)
    solve = {"scatter": spec.total_nbytes, "its copies": 3 * 8 * p * p, "directions": 4 * 8 * p * k}
    reason = "one read; p x p scatter"
    candidate: Candidate[PassResult] = Candidate("scatter", reason, (spec,), solve)
    planned = choose(matrix, "r2_baselines", [candidate], running.memory_limit)
    done = execute(planned, running).answer
    return done["s"], done.cost


def _standardised(scatter: Any, matrix: ChunkedMatrix, scale: str | None) -> tuple[Array, Array]:
    """(scatter of the scaled columns (p, p), features by falling variance)."""
    stats = stats_of_sums(scatter)
    scaling = Standardize(True, scale).resolve(stats, Resolution.of(matrix.dtype).eps)
    S = symmetrize(np.array(scatter.lower()))
    S[scaling.constant] = 0.0
    S[:, scaling.constant] = 0.0
    if not S.any():
        raise InvalidInputError("no feature of X varies, so that there is no variance to share")
    order = np.argsort(-np.diagonal(S), kind="stable")
    if scaling.scale is not None:
        inverse = reciprocal(scaling.scale)
        S *= inverse[:, None] * inverse
    return S, order


@dataclass(frozen=True)
class _Carried:
    """R^2 of directions in data with the scatter S (p, p).  regress : by the best linear map."""

    S: Array
    regress: bool

    @property
    def total(self) -> float:
        return float(np.trace(self.S))

    def of_components(self, k: int) -> Array:
        """(k + 1,) of the leading components."""
        return self._shares(eigh_lower(np.array(self.S), k).values)

    def of(self, directions: Array) -> Array:
        """(k + 1,) of the first 0, 1, ..., k of the directions (p, k).

        By projection each adds the variance along what is new of it; by regression the squared
        covariance of all features with what is new of its scores.
        """
        if not self.regress:
            q = scipy.linalg.qr(directions, mode="economic")[0]
            return self._shares(np.sum(q * (self.S @ q), axis=0))
        images = self.S @ directions
        gains = np.zeros(directions.shape[1])
        found = independent(np.tril(directions.T @ images), np.zeros_like(gains), DEPENDENT)
        fresh = found.inverse @ images[:, found.kept].T
        gains[found.kept] = np.sum(fresh**2, axis=1)
        return self._shares(gains)

    def _shares(self, gains: Array) -> Array:
        return np.concatenate([[0.0], np.minimum(np.cumsum(gains) / self.total, 1.0)])


def _drawn(found: _Carried, name: str, k: int, n_draws: int, seed: int) -> Array:
    """(draws, k + 1) R^2 of random directions, or of features chosen at random."""
    return np.array([found.of(one) for one in _draws(name, len(found.S), k, n_draws, seed)])


def _draws(name: str, p: int, k: int, n_draws: int, seed: int) -> Iterator[Array]:
    """(p, k) directions of each draw."""
    for i in range(n_draws):
        if name == DRAWN[0]:
            yield RandomMatrix((seed + i) % 2**63, k, p, "gaussian", 1.0)[:, :].T
        else:
            yield _columns(np.random.default_rng((seed, i)).permutation(p)[:k], p)


def _columns(chosen: Array, p: int) -> Array:
    """(p, k) directions along some features."""
    made = np.zeros((p, len(chosen)))
    made[chosen, np.arange(len(chosen))] = 1.0
    return made
