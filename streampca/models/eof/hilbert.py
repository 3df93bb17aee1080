"""Hilbert EOFs: complex patterns that travel, from a real PCA of the analytic signal."""

from __future__ import annotations

import copy
import hashlib
import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array
from streampca.matrix.block import work_dtype
from streampca.matrix.chunked_matrix import ChunkedMatrix, regular_edges
from streampca.matrix.components import component_axis
from streampca.matrix.derived import ComputedView
from streampca.matrix.labels import AxisLabels, Labels
from streampca.models.contract.linear import decomposition_of
from streampca.report.presentation import FeatureMap, Presentation, carried_share, percentages
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

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import analytic
    >>> t, x = np.arange(60.0)[:, None], np.arange(8.0)
    >>> analytic(np.cos(0.5 * t - 0.7 * x)).shape
    (120, 16)
    """
    if padding not in (None, "exp"):
        raise InvalidInputError(f"padding={padding!r}; expected None or 'exp'")
    matrix = as_matrix(counted(X), dim=dim)
    if matrix.shape[0] < 2:
        raise InvalidInputError(f"{matrix.shape[0]} row has no phase; expected at least 2")
    if {PART, SCORE_PART} & {*matrix.labels.samples.dims, *matrix.labels.features.dims}:
        raise InvalidInputError(f"X has a dimension {PART!r} or {SCORE_PART!r}; rename it")
    return AnalyticMatrix(matrix, padding)


class ComplexPatterns:
    """How strong complex patterns are, and when they come.  components : (k, p) complex."""

    components: Array

    @property
    def amplitude(self) -> Array:
        """(k, p) moduli of the components: where a mode is strong."""
        return np.abs(self.components)

    @property
    def phase(self) -> Array:
        """(k, p) arguments of the components, in radians: where a mode comes earlier or later."""
        return np.angle(self.components)


@dataclass(frozen=True)
class ComplexModes(ComplexPatterns):
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

    def presentation(self) -> Presentation:
        """What pictures show of them."""
        shares = np.asarray(self.explained_variance_ratio)
        absent = np.flatnonzero(np.isnan(self.components).any(axis=0))
        return replace(
            complex_maps(self.components, absent, Labels(self.samples, self.features)),
            method="Hilbert EOF",
            pictures="plots.map(modes, kind='amplitude'), plots.map(modes, kind='phase'), "
            "plots.pcs, plots.scree",
            component="Mode ",
            remarks=percentages(shares),
            scores=self.scores,
            makes_scores="modes = complex_modes(model, analytic(X))",
            deviations=np.sqrt(self.explained_variance),
            shares=shares,
            carries=carried_share(shares),
            variances=self.explained_variance,
        )

    def to_xarray(self) -> Any:
        """All of these as an ``xarray.Dataset``, with amplitudes and phases of scores too."""
        from streampca.sources.labelled.to_xarray import to_dataset

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


def complex_maps(components: Array, absent: Array, labels: Labels) -> Presentation:
    """What pictures show of complex components (m, p): maps of their amplitude and phase.

    absent : numbers of the features without any observation.
    """

    def amplitude(indices: list[int]) -> Array:
        return np.abs(components[indices])

    def phase(indices: list[int]) -> Array:
        return np.asarray(np.angle(components[indices], deg=True))

    return Presentation(
        method="",
        labels=labels,
        n_components=len(components),
        pictures="",
        maps={
            "amplitude": FeatureMap(amplitude, lambda variable: "Amplitude (unit vector)"),
            "phase": FeatureMap(phase, lambda variable: "Phase [degrees]"),
        },
        left_out={"without observation": absent},
    )


def complex_modes(model: Any, X: Any = None) -> ComplexModes:
    """The k complex EOFs of a PCA that was fitted with 2k components to :func:`analytic`.

    X : (n, p) matrix of the fit, for scores where the fit kept none; one more pass.

    The two components of a pair span c and ic of one complex vector c. Where several pairs have
    one variance, their span is split as any basis of it.
    Cost: 4 p k^2 complex multiplications.
    Raises InvalidInputError for another model, or an odd number of components.
    Source: Horel 1984, J. Climate Appl. Meteor. 23, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, analytic, complex_modes
    >>> t, x = np.arange(60.0)[:, None], np.arange(8.0)
    >>> modes = complex_modes(PCA(2).fit(analytic(np.cos(2 * np.pi * t / 12 - 0.7 * x))))
    >>> np.diff(np.unwrap(modes.phase[0])).round(1)  # 0.7 from place to place, in either direction
    array([0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7])
    """
    result = decomposition_of(model, "complex_modes(PCA(2 * k).fit(streampca.analytic(X)))")
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
        values[:k] ** 2 * factor,
        shares / (values**2).sum(),
        components,
        _scores(model, X, turn),
        _halved(samples),
        _halved(features),
    )


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


PART, SCORE_PART, PARTS = "part", "score_part", ("real", "imaginary")
STRIP = 1024  # features that are transformed at a time where samples are streamed
DECAY = 0.2  # of exponential padding, in lengths of the series


class AnalyticMatrix(ComputedView):
    """[[X, -H], [H, X]] of centred X + iH, where H is the Hilbert transform of each feature.

    (2n, 2p): rows are the real, then the imaginary part; so are features. Each singular value of
    X + iH is there twice. Features are read whole, each once for either part; samples can be
    streamed in a single block alone.
    """

    computes = True

    def __init__(self, base: ChunkedMatrix, padding: str | None) -> None:
        self.base, self.padding = base, padding
        self.shape = (2 * base.shape[0], 2 * base.shape[1])
        self.dtype = work_dtype(base.dtype)
        self.loads, self.note = base.loads, base.note
        self.resident_nbytes, self.given_nbytes = base.resident_nbytes, base.given_nbytes
        labels = base.labels
        self.labels = replace(
            labels,
            samples=_doubled(labels.samples, SCORE_PART),
            features=_doubled(labels.features, PART),
        )

    def read(self, axis: int, start: int, stop: int, buffer: Any = None) -> Any:
        if axis == 1:
            return self._columns(start, stop)
        out = np.empty((stop - start, self.shape[1]), self.dtype)
        for first in range(0, self.shape[1], STRIP):
            last = min(first + STRIP, self.shape[1])
            out[:, first:last] = self._columns(first, last)[start:stop]
        return out

    def _columns(self, start: int, stop: int) -> Array:
        n, p = self.base.shape
        out = np.empty((stop - start, 2 * n), self.dtype).T
        middle = min(max(p, start), stop)
        if start < middle:
            real, imaginary = self._signal(start, middle)
            out[:n, : middle - start], out[n:, : middle - start] = real, imaginary
        if middle < stop:
            real, imaginary = self._signal(middle - p, stop - p)
            out[:n, middle - start :], out[n:, middle - start :] = -imaginary, real
        return out

    def _signal(self, start: int, stop: int) -> tuple[Array, Array]:
        """(n, features) float64 X and H, both centred."""
        values = self.base.read(1, start, stop)
        dense = values if isinstance(values, np.ndarray) else values.toarray()
        x = dense.astype(np.float64, order="F")
        if (code := self.base.missing_value) is not None:
            x[dense == code] = np.nan
        holes = np.isnan(x).sum(axis=0)
        if (partly := np.flatnonzero((holes > 0) & (holes < len(x)))).size:
            name = self.base.labels.features.name(start + int(partly[0]))
            raise NonFiniteError(
                f"{holes[partly[0]]} missing cells in feature {name}; the Hilbert transform of a "
                "series needs all of it. Fill them first, such as X.interpolate_na('time')"
            )
        x -= x.mean(axis=0)
        h = hilbert_transform(x, self.padding)
        h -= h.mean(axis=0)
        return x, h

    def chunk_edges(self, axis: int) -> Array | None:
        if axis == 0:
            return np.array([0, self.shape[0]])
        below = self.base.chunk_edges(1)
        return None if below is None else np.unique([*below, *(below + self.base.shape[1])])

    def _inside(self, edges: Array) -> list[Array]:
        """The positions in the base of features at these edges, of either part."""
        edges, p = np.asarray(edges, np.int64), self.base.shape[1]
        return [np.unique(np.clip(edges - o, 0, p)) for o in (0, p)]

    def count_chunks(self, axis: int, start: int, stop: int) -> int:
        return self.count_span(axis, np.array([start, stop]))

    def count_span(self, axis: int, edges: Array) -> int:
        if axis == 0:
            whole = regular_edges(self.shape[1], STRIP)
            return sum(self.count_chunks(1, int(a), int(b)) for a, b in itertools.pairwise(whole))
        return sum(
            self.base.count_chunks(1, int(a), int(b))
            for inside in self._inside(edges)
            for a, b in itertools.pairwise(inside)
        )

    def reach(self, axis: int) -> int:
        return self.base.reach(1) if axis == 1 else 0

    def entry_points(self, axis: int) -> Array | None:
        return None

    def prepare_reads(self, axis: int) -> Any:
        return self.base.prepare_reads(1)

    def advice(self, axis: int) -> str:
        return self.base.advice(1)

    def read_scratch_nbytes(self, axis: int, length: int) -> int:
        """The series, their transforms with padding, and both parts."""
        many = min(length if axis == 1 else STRIP, self.base.shape[1])
        series = 8 * self.base.shape[0] * many
        made = (5 + 3 * (3 if self.padding else 1)) * series
        strip = 2 * self.shape[0] * many * self.dtype.itemsize if axis == 0 else 0
        return made + strip + self.base.read_scratch_nbytes(1, many)

    def part(self, axis: int, start: int, stop: int) -> ChunkedMatrix:
        return copy.copy(self)

    def column(self, axis: int, name: str) -> Any:
        return self.labels.axis(axis).coordinate(name)

    def _digest(self, base: str) -> str:
        return hashlib.sha256(f"{base} analytic {self.padding}".encode()).hexdigest()


def _doubled(own: AxisLabels, name: str) -> AxisLabels:
    """The axis of the real part, then that of the imaginary one."""
    if own.parts:
        raise InvalidInputError(
            "the analytic signal of several variables: open one of them, variable=..., or stack "
            "them as features of one array"
        )
    extra = {key: (own.dims, np.asarray(values)) for key, values in own.extra.items()}
    return replace(
        own,
        dims=(name, *own.dims),
        sizes=(2, *own.sizes),
        coords={name: np.array(PARTS), **own.coords},
        extra={},
        grids={**own.grids, **extra},
    )


def hilbert_transform(x: Array, padding: str | None = None) -> Array:
    """(n, p) the Hilbert transform of each column, by its Fourier transform.

    padding : "exp" continues each column on both sides, by n rows, along its straight line: what
        its first and last value lie off the line decays by exp(-t / (DECAY n)). None: columns are
        taken as periodic.
    """
    n = len(x)
    long = _padded(x) if padding == "exp" else x
    spectrum = scipy.fft.rfft(long, axis=0)
    spectrum[0] = 0
    if len(long) % 2 == 0:
        spectrum[-1] = 0
    spectrum *= -1j
    found = scipy.fft.irfft(spectrum, n=len(long), axis=0)
    return np.asarray(found[n : 2 * n] if padding == "exp" else found)


def _padded(x: Array) -> Array:
    n = len(x)
    time = np.arange(-n, 2 * n) - (n - 1) / 2
    inner = time[n : 2 * n]
    mean, slope = x.mean(axis=0), inner @ x / (inner @ inner)
    out = np.multiply.outer(time, slope) + mean
    fading = np.exp(-np.arange(n) / (n * DECAY))[:, None]
    first, last = x[0] - out[n], x[-1] - out[2 * n - 1]
    out[:n] += fading[::-1] * first
    out[2 * n :] += fading * last
    out[n : 2 * n] = x
    return np.asarray(out)
