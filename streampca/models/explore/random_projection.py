"""Random projection: distances kept by a random matrix that is never stored, only regenerated."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy

from streampca.accumulators import FeatureProjection
from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.kernels.columns import row_pieces, seeded
from streampca.matrix import Block, ChunkedMatrix
from streampca.matrix.block import score_dtype
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.results.projection import Projection
from streampca.models.results.result import Result, provenance
from streampca.models.results.row_maps import FeatureSums, RowMap, RowOptions
from streampca.models.rows.labelled_rows import rows_of_scores
from streampca.passes import Candidate, PassSpec, Plan, choose, single_threaded_blas
from streampca.sources import as_matrix, counted

DISTRIBUTIONS = ("gaussian", "sparse", "sign")
FEATURES = 1 << 40  # at most; a component is counted above them
PANEL_NBYTES = 2 << 20  # of a part of the matrix that is regenerated at once
REGENERATING = threading.Lock()


def johnson_lindenstrauss(n_samples: int, eps: float) -> int:
    """Components that keep squared distances between n samples within a factor of 1 +- eps.

    k >= 4 log n / (eps^2 / 2 - eps^3 / 3). Each of the distances is off by more with a probability
    of at most 2 / n^2. Raises InvalidInputError for an eps outside of (0, 1).
    Source: Dasgupta and Gupta 2003, Random Structures & Algorithms 22(1), theorem 2.1.
    """
    if not 0.0 < eps < 1.0:
        raise InvalidInputError(f"eps={eps!r}; expected a number between 0 and 1")
    return int(4.0 * np.log(max(n_samples, 2)) / (eps**2 / 2.0 - eps**3 / 3.0))


@dataclass(frozen=True)
class RandomMatrix:
    """R (k, p), of which any part is made from the seed: the same in every part, on any machine.

    ``matrix[components, features]`` is a part of it, for two slices. Entry (i, j) follows from
    splitmix64 of the seed, i and j alone, so that k components begin the k + 1 of the same seed.
    """

    seed: int
    n_components: int
    n_features: int
    distribution: str
    density: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_components, self.n_features

    def __len__(self) -> int:
        return self.n_components

    nbytes = PANEL_NBYTES  # of a part that is made at once

    def __getitem__(self, part: tuple[slice, slice]) -> Array:
        rows = np.arange(*part[0].indices(self.n_components), dtype=np.uint64)[:, None]
        columns = np.arange(*part[1].indices(self.n_features), dtype=np.uint64)
        return self._entries(seeded(self.seed, rows * np.uint64(FEATURES) + columns))

    def _entries(self, random: Array) -> Array:
        """Entries of mean 0 and variance 1 / k from uniform 64-bit integers."""
        if self.distribution == "sign":
            signs = np.where(random >> np.uint64(63), 1.0, -1.0)
            return np.asarray(signs / np.sqrt(self.n_components))
        uniform = ((random >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52  # never 0 or 1
        if self.distribution == "gaussian":
            return np.asarray(scipy.special.ndtri(uniform) / np.sqrt(self.n_components))
        size = 1.0 / np.sqrt(self.density * self.n_components)
        half = self.density / 2.0
        return np.where(uniform < half, size, np.where(uniform < self.density, -size, 0.0))

    def rows(self, part: slice, dtype: np.dtype[Any]) -> Array:
        """Some rows of it in another dtype, made panel by panel."""
        out = np.empty((len(range(*part.indices(self.n_components))), self.n_features), dtype)
        for columns in self.panels(len(out)):
            out[:, columns] = self[part, columns]
        return out

    def panels(self, rows: int | None = None) -> list[slice]:
        """Slices of the features whose entries, of so many rows, take PANEL_NBYTES."""
        return row_pieces(self.n_features, 8 * (rows or self.n_components), PANEL_NBYTES)

    def factor(self) -> Any:
        """The Cholesky factor of R R', as scipy.linalg.cho_solve takes it."""
        if self.n_components > self.n_features:
            raise InvalidInputError(
                f"{self.n_components} components of {self.n_features} features are dependent: "
                "inverse_transform(Y, least_squares=False)"
            )
        gram = np.zeros((self.n_components, self.n_components))
        for part in self.panels():
            rows = self[:, part]
            gram += rows @ rows.T
        with single_threaded_blas():
            try:
                return scipy.linalg.cho_factor(gram, lower=True)
            except np.linalg.LinAlgError:
                raise InvalidInputError(
                    "rows of this random matrix depend on each other: "
                    "inverse_transform(Y, least_squares=False), or another random_state"
                ) from None


@dataclass(frozen=True)
class RandomScores(RowMap):
    """x R'. The matrix is made once where it is held, else part by part for every block.

    at_once : components whose rows of R are in memory together.
    """

    matrix: RandomMatrix
    at_once: int
    made: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without what was made: it is made again where it is needed."""
        return {**self.__dict__, "made": {}}

    @property
    def width(self) -> int:
        return self.matrix.n_components

    def __call__(self, block: Block) -> Array:
        dtype = block.work_dtype
        out = np.empty((block.shape[0], self.width), dtype)
        for first in range(0, self.width, self.at_once):
            part = slice(first, min(first + self.at_once, self.width))
            out[:, part] = Projection(self._rows(part, dtype), None, None, None, "raise", ())(block)
        return out

    def _rows(self, part: slice, dtype: np.dtype[Any]) -> Array:
        if self.at_once < self.width:
            return self.matrix.rows(part, dtype)
        with REGENERATING:
            if dtype.char not in self.made:
                self.made[dtype.char] = self.matrix.rows(part, dtype)
            return self.made[dtype.char]

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        k, p = self.matrix.shape
        copies = 1 if self.at_once == k else 3  # as Projection takes them; and those made here
        return lambda length: 8 * (copies * self.at_once * p + 2 * length * k) + 8 * PANEL_NBYTES

    def by_features(self) -> FeatureSums:
        total = FeatureProjection(center=None, missing="raise", width=self.width)
        return FeatureSums(total, {"components": self.matrix}, lambda sums, eps: sums.projected())


@dataclass(frozen=True)
class RandomRows:
    """Rows of scores y: y R, or y (R R')^-1 R, the shortest rows that have these scores."""

    matrix: RandomMatrix
    factor: Any  # of R R', or None

    def __call__(self, block: Block) -> Array:
        return self.apply(block.dense())

    def apply(self, scores: Array) -> Array:
        """(rows, p) of scores in memory; float32 stays float32."""
        dtype = score_dtype(scores.dtype)
        y = np.asarray(scores, np.float64)
        y = y if self.factor is None else scipy.linalg.cho_solve(self.factor, y.T).T
        out = np.empty((len(y), self.matrix.n_features), dtype)
        for part in self.matrix.panels():
            out[:, part] = y @ self.matrix[:, part]
        return out

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        k, p = self.matrix.shape
        return lambda length: 8 * length * (2 * p + 2 * k) + 8 * k * k + 8 * PANEL_NBYTES


@dataclass(frozen=True, repr=False, kw_only=True)
class RandomResult(Result, kind="random projection"):
    """What makes the matrix: its seed, shape and distribution. Nothing of the data.

    at_once : components whose rows of the matrix are held together.
    """

    width: int
    seed: int
    distribution: str
    density: float
    at_once: int

    @property
    def n_components(self) -> int:
        return self.width

    @property
    def matrix(self) -> RandomMatrix:
        p = self.n_features
        return RandomMatrix(self.seed, self.width, p, self.distribution, self.density)

    @property
    def kept_nbytes(self) -> int:
        return 8 * self.width * self.n_features if self.at_once == self.width else 0

    @property
    def identity(self) -> tuple[Any, ...]:
        return (np.array([self.seed, self.width, DISTRIBUTIONS.index(self.distribution)]),)

    def scores_of(self, options: RowOptions) -> RowMap:
        return RandomScores(self.matrix, self.at_once)

    def notes(self) -> list[str]:
        held = "held" if self.at_once == self.width else f"made {self.at_once} rows at a time"
        return [
            f"{self.distribution} matrix of seed {self.seed}, density {self.density:.3g}, {held}"
        ]


@estimator
class RandomProjection(Estimator):
    """Rows times a random matrix of k columns: distances are kept, nothing is learnt.

    Attributes
    ----------
    n_components_ k, density_, components_ (k, p): made on use; plan_ (of ``transform`` of
    X), result_.

    Nothing is centred or scaled, and missing cells are refused. A fit looks at the shape alone.
    Rows of another part of the data, fitted apart, have other scores under "auto", for k depends
    on n: give k.
    Cost: no read to fit; one to transform. The matrix is k x p x 8 bytes where the plan holds it;
    else its parts are made for every block again, about 20 ns an entry.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Achlioptas 2003, J. Comput. Syst. Sci. 66(4), theorem 1.1; Li, Hastie and Church 2006,
    KDD, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import RandomProjection
    >>> X = np.random.default_rng(0).normal(size=(20, 1000))
    >>> model = RandomProjection(400, random_state=0).fit(X)
    >>> scores = model.transform(X)
    >>> bool(abs(np.linalg.norm(scores[0] - scores[1]) / np.linalg.norm(X[0] - X[1]) - 1) < 0.2)
    True
    """

    n_components: int | str = parameter(
        default="auto",
        kw_only=False,
        counts_components=True,
        meaning="""k; "auto": as many as keep squared distances between the n samples within a
            factor of 1 +- eps (:func:`johnson_lindenstrauss`).""",
    )
    eps: float = parameter(default=0.1, meaning='of "auto": how far squared distances may be off.')
    distribution: str = parameter(
        default="gaussian",
        choices=DISTRIBUTIONS,
        meaning=""""gaussian"; "sparse": a share of the entries, the density, is not 0; or
            "sign": all are +1 or -1. Each over the root of what gives a variance of 1 / k.""",
    )
    density: float | None = parameter(
        default=None,
        meaning="""of "sparse": share of entries that are not 0; None: 1 / sqrt(p), as Li and
            others; 1 / 3 is Achlioptas'.""",
    )
    random_state: Any = shared.RANDOM_STATE

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``transform`` of X, (n, p), would do, since fitting reads nothing: reads, memory."""
        matrix = as_matrix(counted(X), dim=dim, missing_value=self.missing_value)
        return self._choose(matrix)[0]

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Draw the seed of a matrix for X (n, p); reads no values. Raises InvalidInputError."""
        matrix = as_matrix(counted(X), dim=dim, missing_value=self.missing_value)
        (n, p), k = matrix.shape, self._count(matrix)
        if self.n_components == "auto" and k > p:
            raise InvalidInputError(
                f"eps={self.eps} takes {k} components for {n} samples, more than the {p} "
                "features: give n_components, or a larger eps"
            )
        self.plan_, at_once = self._choose(matrix)
        self.cost_, self.dim_ = [], dim
        self.result_: RandomResult = RandomResult(
            method=self.registered_name,
            n_samples=n,
            labels=matrix.labels,
            settings=self.stored_params(),
            plan=self.plan_.to_dict(),
            provenance=provenance([], matrix.fingerprint()),
            width=k,
            seed=seed_of(self.random_state) % 2**63,
            distribution=self.distribution,
            density=self._density(matrix),
            at_once=at_once,
        )
        self.n_features_in_ = self.result_.n_features
        return self

    def inverse_transform(
        self,
        X: Any,
        *,
        least_squares: bool = True,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> Any:
        """Rows (n, p) of scores (n, k): the shortest that have them, y (R R')^-1 R.

        least_squares : False takes y R, whose mean over seeds is the row that had these scores.
        out : path of a new Zarr array to write block by block. Lazy on Dask, labelled where X is.
        Cost: one pass over the scores; k p (k + 2 n) flops.
        """
        result = self._result_as(RandomResult)
        rows = RandomRows(result.matrix, result.matrix.factor() if least_squares else None)
        return rows_of_scores(
            result, self._passes, "inverse transform", X, rows, out=out, overwrite=overwrite
        )

    @property
    def components_(self) -> Array:
        """(k, p) the random matrix, made anew: k x p x 8 bytes."""
        return self.result_.matrix[:, :]

    @property
    def density_(self) -> float:
        """Share of the entries that are not 0."""
        return self.result_.density

    def _choose(self, matrix: ChunkedMatrix) -> tuple[Plan, int]:
        """The plan of ``transform``, and how many rows of the random matrix are held at once: all,
        or ever fewer."""
        k, p = self._count(matrix), matrix.shape[1]
        random = RandomMatrix(0, k, p, self.distribution, self._density(matrix))
        sizes = [k] + [size for size in (k // 4, k // 16, k // 64, 1) if 0 < size < k]
        ways: dict[int, Candidate[Any]] = {}
        for at_once in dict.fromkeys(sizes):
            held = at_once == k
            reason = "the random matrix is held" if held else f"made {at_once} rows at a time"
            spec = PassSpec(
                "transform",
                0,
                0,
                0,
                RandomScores(random, at_once).scratch_nbytes(matrix),
                kept_nbytes=8 * k * p if held else 0,
                stored=True,
            )
            ways[at_once] = Candidate("random", reason, (spec,), sizes={"at_once": at_once})
        planned = choose(matrix, "RandomProjection", list(ways.values()), self.memory_limit)
        return planned.plan, next(m for m, way in ways.items() if way is planned.candidate)

    def _count(self, matrix: ChunkedMatrix) -> int:
        k = self.n_components
        if k == "auto":
            k = johnson_lindenstrauss(matrix.shape[0], self.eps)
        return whole_number("n_components", k, beside="'auto' or ")

    def _density(self, matrix: ChunkedMatrix) -> float:
        if self.distribution not in DISTRIBUTIONS:
            raise InvalidInputError(
                f"distribution={self.distribution!r}; expected one of {DISTRIBUTIONS}"
            )
        if self.distribution != "sparse":
            return 1.0
        density = 1.0 / np.sqrt(matrix.shape[1]) if self.density is None else float(self.density)
        if not 0.0 < density <= 1.0:
            raise InvalidInputError(f"density={self.density!r}; expected a share above 0, up to 1")
        return density
