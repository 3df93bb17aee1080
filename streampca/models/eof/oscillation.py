"""Principal oscillation patterns: damped waves of a linear model of the PCs of a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix.components import component_axis
from streampca.models.contract.request import whole_number
from streampca.models.eof.complex_result import ComplexPatterns, complex_maps
from streampca.models.eof.time_lags import PCSeries, in_units_of_data
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.value_attributes import of_map, of_pattern, of_series
from streampca.report.presentation import Presentation
from streampca.solvers import signs_of_components

EXAMPLE = "pca = PCA(5).fit(X); oscillation_patterns(pca, scores=pca.project(X))"


@dataclass(frozen=True)
class OscillationPatterns(ComplexPatterns):
    """m modes of x(t + lag) = A x(t) + noise; a pair of complex eigenvalues is one mode.

    eigenvalues : (m,) complex, of A; their imaginary parts are not negative.
    periods : (m,) in steps of time; inf of a mode that does not oscillate.
    decay_times : (m,) steps in which the amplitude falls to 1 / e; inf where it does not.
    explained_variance_ratio : (m,) shares of the total variance that each mode carries alone, in
        descending order. Patterns are not orthogonal: shares do not add up.
    components : (m, p) complex unit vectors, of centred (scaled, weighted) rows, as EOFs are. Their
        real parts are orthogonal to their imaginary ones, and the larger. NaN for features without
        any observation. A cycle goes from the real part to minus the imaginary one;
        a wave travels from larger phases to smaller ones.
    patterns : (m, p) complex, in the units of the data, for a score of root mean square 1.
    scores : (n, m) complex z; a mode is the real part of z times its component.
    filters : (k, m) complex: z = PCs times these.
    n_pairs : pairs of samples in the regression.  result : of the fit whose PCs these are.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, oscillation_patterns
    >>> X = np.random.default_rng(0).normal(size=(50, 6))
    >>> pca = PCA(3).fit(X)
    >>> pops = oscillation_patterns(pca, scores=pca.project(X))
    >>> pops.transform(pca.project(X[:5])).shape == pops.scores[:5].shape
    True
    """

    eigenvalues: Array
    periods: Array
    decay_times: Array
    explained_variance_ratio: Array
    components: Array
    patterns: Array
    scores: Array
    filters: Array
    n_pairs: int
    result: Decomposition

    def transform(self, pcs: Any) -> Array:
        """(rows, m) complex scores of other rows, of their PCs (rows, >= k): ``pca.project(X)``."""
        return np.asarray(pcs)[..., : len(self.filters)] @ self.filters

    def presentation(self) -> Presentation:
        """What pictures show of them."""
        return replace(
            complex_maps(self.components, self.result.dropped, self.result.labels),
            method="POP analysis",
            pictures="plots.map(pops, kind='amplitude'), plots.map(pops, kind='phase'), plots.pcs",
            component="POP ",
            remarks=tuple(
                f"period {one:.3g} steps" if np.isfinite(one) else "no oscillation"
                for one in self.periods
            ),
            scores=self.scores,
            deviations=_amplitude(self.scores),
        )

    def to_xarray(self) -> Any:
        """All of these as an ``xarray.Dataset``, with amplitudes and phases."""
        from streampca.sources.labelled.to_xarray import to_dataset

        result, labels = self.result, self.result.labels
        modes = component_axis(len(self.periods), labels.samples, labels.features)
        maps = [modes, labels.features]
        tables = {
            "eigenvalues": (self.eigenvalues, [modes]),
            "periods": (self.periods, [modes]),
            "decay_times": (self.decay_times, [modes]),
            "explained_variance_ratio": (self.explained_variance_ratio, [modes]),
            "components": (self.components, maps),
            "amplitude": (self.amplitude, maps),
            "phase": (self.phase, maps),
            "patterns": (self.patterns, maps),
            "scores": (self.scores, [labels.samples, modes]),
        }
        attrs: dict[str, Any] = {
            "components": partial(of_map, result, what="POPs (unit vectors) of", power=0),
            "patterns": partial(of_pattern, result, what="POPs (scores of unit amplitude) of"),
            "scores": of_series(result, "scores of POPs of", 1),
        }
        return to_dataset(tables, {"method": "POP", "n_pairs": self.n_pairs}, attrs)


def oscillation_patterns(
    source: Any,
    k: int | None = None,
    *,
    lag: int = 1,
    coefficients: str = "least_squares",
    scores: Any = None,
) -> OscillationPatterns:
    """POPs: patterns, periods and decay times of the waves in a field, from its PCs.

    source : a fitted PCA (or another estimator with EOFs), or its Decomposition; samples in the
        order of time.
    k : leading PCs that are used, None: all that vary. The answer depends on it.
    lag : steps of time from one sample of a pair to the other.
    coefficients : how scores come from the PCs: "least_squares", of each mode alone; or "adjoint":
        the adjoint patterns, by which all modes add up to the PCs, and a score follows its
        eigenvalue, z(t + lag) = lambda z(t) + noise.
    scores : (n, k) PCs of the rows of the fit, where it kept none: ``pca.project(X)``.

    Pairs do not reach across a gap in the dates (or numbers) of the samples, nor over a sample
    without observations. Several dimensions of samples (members) are as many series. Weights of
    samples do not count.
    Cost: nothing is read; n k^2 and p k^2 multiplications, 16 p k bytes for each kind of map.
    Raises InvalidInputError: rotated components, times that are not evenly spaced, too few pairs.
    Source: von Storch, Buerger, Schnur and von Storch 1995, Journal of Climate 8, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, oscillation_patterns
    >>> t, x = np.arange(120.0)[:, None], np.arange(8.0)
    >>> wave = np.cos(2 * np.pi * t / 24 - 0.7 * x)
    >>> wave += 0.01 * np.random.default_rng(0).normal(size=wave.shape)
    >>> pca = PCA(2).fit(wave)
    >>> oscillation_patterns(pca, scores=pca.project(wave)).periods.round(1)
    array([24.])
    """
    if coefficients not in ("least_squares", "adjoint"):
        raise InvalidInputError(
            f"coefficients={coefficients!r}; expected 'least_squares' or 'adjoint'"
        )
    series = PCSeries.of(source, k, scores, EXAMPLE)
    result, width = series.result, series.scores.shape[1]
    before, after = series.pairs(whole_number("lag", lag), width + 1)
    values, vectors, adjoints = _modes(before, after, np.sqrt(np.mean(series.observed**2, axis=0)))
    turn = np.exp(-0.5j * np.angle(np.sum(vectors**2, axis=0)))  # real parts orthogonal to others
    eofs = result.require_components()[:width]
    turn *= signs_of_components(eofs.T @ (vectors * turn).real)
    vectors, adjoints = vectors * turn, adjoints / turn
    alone, variance = _alone(vectors, series.observed)
    order = np.argsort(-variance, kind="stable")
    values = values[order]
    filters = (alone if coefficients == "least_squares" else adjoints)[:, order]
    components = vectors[:, order].T @ eofs
    components[:, result.dropped] = np.nan
    found = series.scores @ filters
    with np.errstate(divide="ignore"):
        periods = 2 * np.pi * lag / np.angle(values)
        decay = -lag / np.log(np.abs(values))
    return OscillationPatterns(
        values,
        periods,
        np.where(np.abs(values) < 1, decay, np.inf),
        variance[order] / ((len(series.observed) - result.ddof) * result.total_variance),
        components,
        in_units_of_data(result, components * _amplitude(found)[:, None]),
        found,
        filters,
        len(before),
        result,
    )


def _modes(before: Array, after: Array, unit: Array) -> tuple[Array, Array, Array]:
    """(m,) eigenvalues of the regression, one of each pair; (k, m) unit eigenvectors, and filters
    by which all modes, the real parts of z times these, add up.

    unit : (k,) of the PCs.
    """
    step = np.linalg.lstsq(before / unit, after / unit, rcond=None)[0].T
    values, vectors = np.linalg.eig(step)
    vectors = vectors * unit[:, None] + 0j
    vectors /= np.linalg.norm(vectors, axis=0)
    adjoints = np.linalg.inv(vectors).T * np.where(values.imag > 0, 2.0, 1.0)
    once = values.imag >= 0
    return values[once] + 0j, vectors[:, once], adjoints[:, once]


def _alone(vectors: Array, pcs: Array) -> tuple[Array, Array]:
    """(k, m) filters of the least-squares scores of each mode, and (m,) sums of squares of it.

    vectors : (k, m), their real parts orthogonal to the imaginary ones. Source: eq. 19.
    """
    sizes = np.sum(vectors.real**2, axis=0), np.sum(vectors.imag**2, axis=0)
    filters = vectors.real * reciprocal(sizes[0]) - 1j * vectors.imag * reciprocal(sizes[1])
    z = pcs @ filters
    return filters, np.sum(z.real**2 * sizes[0] + z.imag**2 * sizes[1], axis=0)


def _amplitude(scores: Array) -> Array:
    """(m,) root mean squares."""
    return np.asarray(np.sqrt(np.nanmean(np.abs(scores) ** 2, axis=0)))
