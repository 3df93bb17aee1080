"""Hilbert EOFs: complex patterns that travel, from a real PCA of the analytic signal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.analytic import PART, SCORE_PART, AnalyticMatrix
from streampca.matrix.labels import component_axis
from streampca.sources import as_matrix, counted


def analytic(X: Any, *, padding: str | None = "exp", dim: Any = None) -> ChunkedMatrix:
    """The analytic signal X + iH of each series, lazily, for :func:`complex_modes`.

    X : (n, p), anything that ``streampca.open`` takes; rows evenly spaced in time.  dim : as there.
    padding : "exp" continues each series on both sides before its Hilbert transform H, so that its
        ends do not meet; None takes series as periodic. As xeofs' ``HilbertEOF``.

    The matrix is the real form [[X, -H], [H, X]], (2n, 2p), of the centred complex one: its
    variances are those of the complex EOFs, (n - 1) / (2n - 1) times, and each is there twice. So
    2k components give k complex modes::

        model = PCA(2 * 4).fit(streampca.analytic(sst, dim="time"))
        modes = streampca.complex_modes(model)
        modes.to_xarray().amplitude  # (component, lat, lon)

    Cost: nothing here; in a pass over features, each is read twice, with a Fourier transform. All
    samples of a feature are needed at once: store X in chunks of features.
    Raises InvalidInputError; NonFiniteError where a feature with holes is read (not one without
    any observation, which is left out).
    Source: Barnett 1983, Monthly Weather Review 111, section 3.
    """
    if padding not in (None, "exp"):
        raise InvalidInputError(f"padding={padding!r}; expected None or 'exp'")
    matrix = as_matrix(counted(X), dim=dim)
    if {PART, SCORE_PART} & {*matrix.labels.samples.dims, *matrix.labels.features.dims}:
        raise InvalidInputError(f"X has a dimension {PART!r} or {SCORE_PART!r}; rename it")
    return AnalyticMatrix(matrix, padding)


@dataclass(frozen=True)
class ComplexModes:
    """Complex EOFs and their scores.

    explained_variance : (k,) of X + iH, over n - 1.
    explained_variance_ratio : (k,) its shares of the whole.
    components : (k, p) complex unit vectors; NaN for features without any observation. Each is
        known up to a factor of modulus 1.
    scores : (n, k) complex (X + iH) c, of ``explained_variance`` each; None without them.
    samples, features : the labels of the rows and columns of X.
    """

    explained_variance: Array
    explained_variance_ratio: Array
    components: Array
    scores: Array | None
    samples: AxisLabels
    features: AxisLabels

    @property
    def amplitude(self) -> Array:
        """(k, p) moduli of the components: where a mode is strong."""
        return np.abs(self.components)

    @property
    def phase(self) -> Array:
        """(k, p) arguments of the components, in radians: where a mode comes earlier or later."""
        return np.angle(self.components)

    def to_xarray(self) -> Any:
        """All of these as an ``xarray.Dataset``, with amplitudes and phases of scores too."""
        from streampca.sources.labelled_results import to_dataset

        modes = component_axis(len(self.components), self.samples, self.features)
        maps, series = [modes, self.features], [self.samples, modes]
        tables = {
            "explained_variance": (self.explained_variance, [modes]),
            "explained_variance_ratio": (self.explained_variance_ratio, [modes]),
            "components": (self.components, maps),
            "amplitude": (self.amplitude, maps),
            "phase": (self.phase, maps),
        }
        if self.scores is not None:
            tables["scores"] = (self.scores, series)
            tables["score_amplitude"] = (np.abs(self.scores), series)
            tables["score_phase"] = (np.angle(self.scores), series)
        return to_dataset(tables, {"method": "Hilbert EOF"})


def complex_modes(model: Any, X: Any = None) -> ComplexModes:
    """The k complex EOFs of a PCA that was fitted with 2k components to :func:`analytic`.

    X : (n, p) matrix of the fit, for scores where the fit kept none; one more pass.

    The two components of a pair span c and ic of one complex vector c. Where several pairs have
    one variance, their span is split as any basis of it.
    Cost: 4 p k^2 complex multiplications.
    Raises InvalidInputError for another model, or an odd number of components.
    Source: Horel 1984, J. Climate Appl. Meteor. 23, section 2.
    """
    result = model.result_
    features, samples = result.labels.features, result.labels.samples
    if features.dims[:1] != (PART,) or samples.dims[:1] != (SCORE_PART,):
        raise InvalidInputError(
            "this model was not fitted to an analytic signal; expected "
            "PCA(2 * k).fit(streampca.analytic(X))"
        )
    if result.n_components % 2:
        raise InvalidInputError(
            f"{result.n_components} components; expected an even number, two for each mode: "
            f"PCA({result.n_components + 1})"
        )
    n, k = len(samples) // 2, result.n_components // 2
    real = np.array(result.require_components(), np.float64)
    absent = np.unique(result.dropped % (len(features) // 2))
    roots = np.sqrt(result.explained_variance)
    vectors, values, back = np.linalg.svd(_joined(real.T) * roots, full_matrices=False)
    turn = roots[:, None] * back[:k].conj().T / values[:k]
    components = vectors[:, :k].T.copy()
    components[:, absent] = np.nan
    factor = (2 * n - 1) / (n - 1) / 2  # of the squares: each variance is there twice
    shares = values[:k] ** 2 * result.explained_variance_ratio.sum()
    return ComplexModes(
        values[:k] ** 2 * factor, shares / (values**2).sum(), components,
        _scores(model, X, turn), _halved(samples), _halved(features),
    )  # fmt: skip


def _scores(model: Any, X: Any, turn: Array) -> Array | None:
    """(n, k) complex scores.  turn : (2k, k) from those of the components."""
    scores = model.result_.scores
    if scores is None:
        if X is None:
            return None
        scores = np.asarray(model.transform(X))
        if model.whiten:
            scores = scores * model.result_.score_deviation
    return np.asarray(_joined(np.asarray(scores, np.float64)) @ turn)


def _joined(halves: Array) -> Array:
    """Complex rows from real parts, and imaginary ones below them."""
    real, imaginary = np.split(halves, 2)
    return np.asarray(real + 1j * imaginary)


def _halved(axis: AxisLabels) -> AxisLabels:
    """The labels of X, without those of the two parts."""
    coords = {name: values for name, values in axis.coords.items() if name != axis.dims[0]}
    return replace(axis, dims=axis.dims[1:], sizes=axis.sizes[1:], coords=coords)
