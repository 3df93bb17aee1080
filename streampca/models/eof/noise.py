"""Which components carry more than noise would: rule N, also against noise that remembers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal, eigvalsh
from scipy.signal import lfilter

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.models.contract.linear import decomposition_of
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.eof.significance import feature_memory
from streampca.models.eof.time_lags import in_time
from streampca.models.results.decomposition import Decomposition
from streampca.passes import single_threaded_blas
from streampca.passes.settings import thread_count

EXAMPLE = "streampca.noise_test(PCA(10).fit(X))"
KINDS = ("white", "red")
MOST = 40_000_000  # numbers of a red surrogate in memory


@dataclass(frozen=True, repr=False)
class NoiseTest:
    """Shares of the variance beside those of noise.

    shares : (k,) of the model.  noise : (R, k) of surrogates, in order.  kind : "white" or "red".
    memory : lag-one autocorrelation of the noise.  rows, n_features : of the noise.
    p_values : (k,) how often noise has as large a share in the same place; the least is 1/(R + 1).

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, noise_test
    >>> found = noise_test(PCA(2).fit(np.random.default_rng(0).normal(size=(50, 8))))
    >>> found.quantile(0.95).shape, found.n_significant()
    ((2,), 0)
    """

    shares: Array
    noise: Array
    kind: str
    memory: float
    rows: int
    n_features: int
    result: Decomposition

    @property
    def p_values(self) -> Array:
        """(k,)."""
        above = np.count_nonzero(self.noise >= self.shares, axis=0)
        return np.asarray((1 + above) / (1 + len(self.noise)))

    def quantile(self, level: float = 0.95) -> Array:
        """(k,) of the shares of noise."""
        return np.asarray(np.quantile(self.noise, level, axis=0))

    def n_significant(self, level: float = 0.05) -> int:
        """How many leading components all have a p-value of at most this."""
        return int(np.logical_and.accumulate(self.p_values <= level).sum())

    def __repr__(self) -> str:
        what = f"{self.kind} noise of {self.rows:,} x {self.n_features:,}"
        if self.kind == "red":
            what += f" that keeps {self.memory:.2f} of itself from row to row"
        lines = [f"Rule N, {len(self.noise):,} surrogates: {what}"]
        lines.append(f"{'component':>9} {'share':>8} {'noise, 95 %':>12} {'p':>8}")
        ends, p = self.quantile(), self.p_values
        for i, share in enumerate(self.shares[:10]):
            lines.append(f"{i + 1:>9} {share:>8.2%} {ends[i]:>12.2%} {p[i]:>8.3f}")
        return "\n".join(lines)

    def to_xarray(self) -> Any:
        """``shares``, ``noise`` (the 95 % quantile) and ``p_values`` as an ``xarray.Dataset``."""
        from streampca.sources.labelled.to_xarray import to_dataset

        axes = [self.result.component_axis.take(0, len(self.shares))]
        found = {"shares": self.shares, "noise": self.quantile(), "p_values": self.p_values}
        about = {"method": "rule N", "noise": self.kind, "memory": self.memory}
        return to_dataset({name: (values, axes) for name, values in found.items()}, about)


def noise_test(
    source: Any,
    kind: str = "white",
    X: Any = None,
    *,
    dim: Any = None,
    k: int | None = None,
    n_features: int | None = None,
    memory: float | None = None,
    n_surrogates: int = 1000,
    random_state: Any = 0,
) -> NoiseTest:
    """Rule N: which shares of the variance are larger than those of noise of the same size.

    source : a fitted PCA (or another estimator with EOFs), or its Decomposition.
    kind : "white", rows are independent; or "red", each feature is a series that remembers, AR(1),
        as a slow climate does: its components carry more by chance.
    X : of red noise, the rows of the fit: one pass finds the mean lag-one autocorrelation of its
        features (:func:`correlation_maps`), corrected for its bias in short series.
    dim : of the samples of X, as for the fit.
    memory : instead of X, that autocorrelation.
    k : leading components, None: all that the model has.
    n_features : of the noise. None: those of the fit, as the rule is written. Neighbouring cells
        of a field are alike, so that it has fewer independent ones, and every rule with all of them
        finds the leading components significant: state fewer.

    The noise has features of equal variance, and the mean taken out, of red noise only that. Shares
    are compared place by place: a large first component makes those that follow smaller, so the
    test of these is strict. ``streampca.intrinsic_dimension(X, "parallel")`` compares with the
    data of random signs instead, and ``result_.tracy_widom()`` tests each against the rest.
    Cost: nothing is read, or X once. White noise has the spectrum of a random tridiagonal matrix,
    k min(n, p) flops; of red noise a surrogate has min(n, p) columns, and takes n min(n, p)^2.
    Raises InvalidInputError: rotated components, red noise of more than 40 million numbers.
    Source: Overland and Preisendorfer 1982, Mon. Wea. Rev. 110, section 2; for the spectrum of
    white noise Dumitriu and Edelman 2002, J. Math. Phys. 43, theorem 3.1; for the bias Kendall
    1954, Biometrika 41.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, noise_test
    >>> X = np.random.default_rng(0).normal(size=(200, 30))
    >>> X += 2 * np.random.default_rng(1).normal(size=(200, 1))  # one signal
    >>> noise_test(PCA(4).fit(X)).n_significant()
    1
    """
    if not (isinstance(kind, str) and kind in KINDS):
        was = f"={kind!r}" if isinstance(kind, str) else f" is a {type(kind).__name__}"
        raise InvalidInputError(f"kind{was}; expected one of {KINDS}")
    known = isinstance(source, Decomposition)
    result = source if known else decomposition_of(source, EXAMPLE)
    if not result.principal or not min(result.n_components, result.rank):
        raise InvalidInputError(f"expected EOFs with variance, not a {result.method}: {EXAMPLE}")
    most = min(result.n_components, result.rank)
    count = most if k is None else whole_number("k", k, 1, most, "None or ")
    left = result.n_features - len(result.dropped)
    width = left if n_features is None else whole_number("n_features", n_features, 2, left)
    whole_number("n_surrogates", n_surrogates, 20)
    seed = seed_of(random_state)
    if kind == "white":
        rows, phi = max(result.n_samples - _removed(result), 2), 0.0

        def surrogate(number: int) -> Array:
            return white_shares(np.random.default_rng([seed, number]), rows, width, count)

    else:
        series, _ = in_time(result.labels.samples)
        rows = result.n_samples
        phi = _memory_of(source, X, dim, series.shape[1]) if memory is None else _checked(memory)
        _refuse_large(series.size, width)

        def surrogate(number: int) -> Array:
            rng = np.random.default_rng([seed, number])
            return red_shares(rng, series.shape, width, phi, count)

    with single_threaded_blas(), ThreadPoolExecutor(thread_count()) as pool:
        noise = np.stack(list(pool.map(surrogate, range(n_surrogates))))
    shares = np.asarray(result.explained_variance_ratio[: noise.shape[1]])
    return NoiseTest(shares, noise, kind, phi, rows, width, result)


def white_shares(rng: np.random.Generator, n: int, p: int, k: int) -> Array:
    """(k,) shares of the leading eigenvalues of n x p independent normal numbers.

    Their singular values are those of a bidiagonal matrix of chi-distributed numbers.
    """
    long, short = max(n, p), min(n, p)
    diagonal = np.sqrt(rng.chisquare(long - np.arange(short)))
    below = np.sqrt(rng.chisquare(np.arange(short - 1, 0, -1))) if short > 1 else np.empty(0)
    main = diagonal**2
    main[1:] += below**2
    ends = (short - min(k, short), short - 1)
    values = eigh_tridiagonal(
        main, below * diagonal[:-1], eigvals_only=True, select="i", select_range=ends
    )
    return np.asarray(values[::-1] / main.sum())


def red_shares(
    rng: np.random.Generator, shape: tuple[int, int], p: int, memory: float, k: int
) -> Array:
    """(k,) shares of the leading eigenvalues of p series of AR(1) noise, centred.

    shape : (series, steps) that make the rows; each series is one of its own.
    """
    runs, steps = shape
    n = runs * steps
    if p > n:  # rows of normal numbers turned onto the first n columns: a triangle
        noise = np.tril(rng.standard_normal((n, n)), -1)
        noise[np.arange(n), np.arange(n)] = np.sqrt(rng.chisquare(p - np.arange(n)))
    else:
        noise = rng.standard_normal((n, p))
    noise = noise.reshape(runs, steps, -1)
    noise[:, 1:] *= np.sqrt(1.0 - memory**2)
    values = lfilter([1.0], [1.0, -memory], noise, axis=1).reshape(n, -1)
    values -= values.mean(axis=0)
    gram = values.T @ values if values.shape[1] < n else values @ values.T
    ends = (len(gram) - min(k, len(gram)), len(gram) - 1)
    found = eigvalsh(gram, subset_by_index=ends)
    return np.asarray(found[::-1] / np.trace(gram))


def _removed(result: Decomposition) -> int:
    """Rows that the mean and a design take."""
    return int(result.ddof) + (0 if result.design is None else int(result.design.rank))


def _memory_of(source: Any, X: Any, dim: Any, steps: int) -> float:
    """The mean lag-one autocorrelation of the features of X, series of so many steps."""
    if X is None:
        raise InvalidInputError(
            "red noise needs the memory of the data: streampca.noise_test(model, 'red', X) finds "
            "it in one pass, and memory=0.6 states it"
        )
    found = float(np.nanmean(feature_memory(X, dim, getattr(source, "remove", None))))
    return float(np.clip(((steps - 1) * found + 1.0) / max(steps - 4.0, 1.0), 0.0, 0.999))


def _checked(memory: float) -> float:
    if not 0.0 <= float(memory) < 1.0:
        raise InvalidInputError(f"memory={memory!r}; expected an autocorrelation from 0 to 1")
    return float(memory)


def _refuse_large(n: int, p: int) -> None:
    if n * min(n, p) > MOST:
        raise InvalidInputError(
            f"a surrogate of {n:,} x {min(n, p):,} numbers is too large; state the number of "
            f"independent features of the field, n_features={max(2, MOST // n):,} at most"
        )
