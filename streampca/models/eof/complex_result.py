"""The result of complex EOFs, and what they are to real passes: two real components for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.matrix import AxisLabels, Block, ChunkedMatrix, Labels
from streampca.matrix.complex import PartsMatrix, packed, real_parts
from streampca.models.results.decomposition import PrincipalComponents, scaled_matrix
from streampca.models.results.projection import Projection
from streampca.models.results.row_maps import FeatureSums, RowMap, RowOptions, RowPasses
from streampca.report.presentation import FeatureMap, Presentation
from streampca.solvers import TracyWidom

SUMMARY = "of real data alone; expected a real PCA: streampca.PCA"


class ComplexPatterns:
    """How strong complex patterns are, and when they come.  components : (k, p) complex."""

    components: Any

    @property
    def amplitude(self) -> Array:
        """(k, p) moduli of the components: where a mode is strong."""
        return np.asarray(np.abs(self.components))

    @property
    def phase(self) -> Array:
        """(k, p) arguments of the components, in radians: where a mode comes earlier or later."""
        return np.asarray(np.angle(self.components))


def complex_maps(components: Array, absent: Array, labels: Labels) -> Presentation:
    """What pictures show of complex components (m, p): maps of their amplitude and phase.

    absent : numbers of the features without any observation.
    """

    def amplitude(indices: list[int]) -> Array:
        return _absent(np.abs(components[indices]), absent)

    def phase(indices: list[int]) -> Array:
        return _absent(np.asarray(np.angle(components[indices], deg=True)), absent)

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


def _absent(maps: Array, absent: Array) -> Array:
    maps[:, absent] = np.nan
    return maps


@dataclass(frozen=True, repr=False, kw_only=True)
class ComplexDecomposition(ComplexPatterns, PrincipalComponents, kind="complex model"):
    """Principal components of a complex matrix; variances are those of moduli.

    components : (k, p) complex, orthonormal: rows of V^H, where Z = U S V^H. Each is turned so that
        the sum of its entries, times fixed positive weights, is real and positive.
    scores : (n, k) complex (Z - mean) components^H: the mean + scores @ components is Z.
    mean : (p,) complex.  explained_variance : (k,) real, mean squared moduli of the scores.
    amplitude, phase : (k, p) of the components.  of_complex : False of a fit of real rows.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import ComplexEOF
    >>> t, x = np.arange(60.0)[:, None], np.arange(8.0)
    >>> result = ComplexEOF(1).fit(np.exp(1j * (2 * np.pi * t / 12 - 0.7 * x))).result_
    >>> np.diff(np.unwrap(result.phase[0])).round(1)
    array([-0.7, -0.7, -0.7, -0.7, -0.7, -0.7, -0.7])
    """

    of_complex: bool = True

    takes_complex: ClassVar[bool] = True
    rotated_as: ClassVar[tuple[str, str]] = ("RotatedComplexEOF", "rotated complex model")

    def real_form(self) -> PrincipalComponents:
        """The same model of the parts of each feature, (real, imaginary): c and ic for each c.

        Their scores are the parts of those of c, and each has half of its variance.
        """
        p = self.n_features
        twice: Any = {
            name: None if values is None else np.repeat(np.asarray(values), 2)
            for name, values in (("scale", self.scale), ("weights", self.weights))
        }
        places: Any = {
            name: np.sort(np.append(2 * one, 2 * one + 1))
            for name in ("dropped", "constant", "filtered")
            for one in [np.asarray(getattr(self, name))]
        }
        return PrincipalComponents(
            method="PCA",
            n_samples=2 * self.n_samples,
            labels=Labels.plain((0, 2 * p)),
            components=_of_parts(self.require_components()),
            explained_variance=np.repeat(self.explained_variance / 2, 2),
            total_variance=self.total_variance,
            mean=np.ascontiguousarray(self.mean, np.complex128).view(np.float64),
            ddof=self.ddof,
            rank=2 * self.rank,
            weight=self.weight,
            **twice,
            **places,
        )

    # -- rows -----------------------------------------------------------------------------------

    def as_rows(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """New rows, read as their parts. Raises as :meth:`refuse_real`."""
        self.refuse_real(matrix.dtype)
        return PartsMatrix(matrix)

    def refuse_real(self, dtype: Any) -> None:
        """Real rows after a fit of complex ones would be taken for an analytic signal.

        Raises InvalidInputError.
        """
        if self.of_complex and np.dtype(dtype).kind != "c":
            raise InvalidInputError(
                f"X is {dtype}, and the fit was of complex data. Of a model of analytic signals: "
                "model.transform(streampca.analytic(X)); imaginary parts of 0: X + 0j"
            )

    def scores_of(self, options: RowOptions) -> RowMap:
        """The map from rows of parts to their complex scores, (rows, k)."""
        whiten = self.score_deviation if options.whiten else None
        plain = Projection.of(self.real_form(), replace(options, whiten=False))
        return ComplexProjection(replace(plain, components=_of_parts(self.projectors)), whiten)

    def likelihood_of(self, options: RowOptions) -> RowMap:
        """The map to log-likelihoods of a circular complex Gaussian, as a density of both parts."""
        return self.real_form().likelihood_of(options)

    def _squared_errors(self, rows: RowPasses) -> Array:
        return self.real_form()._squared_errors(rows)[::2]

    # -- the model of the rows ------------------------------------------------------------------

    def covariance(self) -> Array:
        """(p, p) Hermitian, of x conj(x)', in the units of the data.  Cost: p^2 k flops."""
        v, noise = self.require_components(), self.noise_variance
        covariance = (v.T * np.maximum(self.explained_variance - noise, 0.0)) @ v.conj()
        covariance[np.diag_indices_from(covariance)] += noise
        return scaled_matrix(covariance, self.divisors)

    def precision(self) -> Array:
        """(p, p) inverse of the covariance; 0 for features that the model leaves out.

        Raises InvalidInputError where the covariance is singular.
        """
        v, noise = self.require_components(), self.noise_variance
        if self.singular:
            raise self.no_density("inverse")
        weights = 1.0 / np.maximum(self.explained_variance, noise)
        more = noise > 0
        precision = (v.T * (weights - (1.0 / noise if more else 0.0))) @ v.conj()
        precision[np.diag_indices_from(precision)] += 1.0 / noise if more else 0.0
        divisors = self.divisors
        return scaled_matrix(precision, None if divisors is None else reciprocal(divisors))

    def tracy_widom(self) -> TracyWidom:
        """Raises InvalidInputError: the test is of real data."""
        raise InvalidInputError(f"the Tracy-Widom test is {SUMMARY}")

    # -- in words and pictures ------------------------------------------------------------------

    def in_dataset(self) -> tuple[dict[str, tuple[Array, list[AxisLabels]]], dict[str, Any]]:
        """Also amplitudes and phases of components (k, p) and of scores (n, k)."""
        labels, modes = self.labels, self.component_axis
        tables: dict[str, tuple[Array, list[AxisLabels]]] = {}
        if self.components is not None:
            for name, values in (("amplitude", self.amplitude), ("phase", self.phase)):
                tables[name] = (self._observed(values), [modes, labels.features])
        if self.scores is not None:
            series = [labels.samples, modes]
            tables["score_amplitude"] = (np.abs(self.scores), series)
            tables["score_phase"] = (np.angle(self.scores), series)
        return tables, {}

    def presentation(self) -> Presentation:
        """What pictures show of them."""
        maps: Any = {}
        if self.components is not None:
            maps = complex_maps(self.components, np.asarray(self.dropped), self.labels).maps
        return replace(
            super().presentation(),
            pictures="plots.map(model, kind='amplitude'), plots.map(model, kind='phase'), "
            "plots.pcs, plots.scree",
            component="Mode ",
            components_of=None,
            correlations=None,
            mean=None,
            maps=maps,
        )


def _of_parts(components: Array) -> Array:
    """(2k, 2p) real: of each complex row c the parts of c, then those of ic."""
    k, p = components.shape
    both = packed(np.ascontiguousarray(components.T)).T
    return np.asarray(both.reshape(2, k, 2 * p).transpose(1, 0, 2).reshape(2 * k, 2 * p))


@dataclass(frozen=True)
class ComplexProjection(RowMap):
    """Complex scores of rows of parts: the map of their real form, its results in pairs."""

    parts: Projection
    whiten: Array | None  # (k,) deviations of the scores, 0 beyond the rank, or None

    @property
    def width(self) -> int:
        """k."""
        return self.parts.width // 2

    def __call__(self, block: Block) -> Array:
        """(rows, k) complex scores of a block of samples."""
        return self._joined(self.parts(block))

    def _joined(self, scores: Array) -> Array:
        kind = np.complex64 if scores.dtype == np.float32 else np.complex128
        found: Array = np.ascontiguousarray(scores).view(kind)
        if self.whiten is None:
            return found
        return np.asarray(found * reciprocal(self.whiten).astype(scores.dtype))

    def by_features(self) -> FeatureSums:
        """By blocks of features."""
        sums = self.parts.by_features()
        return replace(sums, finish=lambda total, eps: self._joined(sums.finish(total, eps)))

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """As of the real form."""
        return self.parts.scratch_nbytes(matrix)

    def block_of(self, values: Any, missing_value: float | None) -> Block:
        """Complex rows in memory as a block of their parts."""
        parts = real_parts(values, missing_value)
        return Block(parts, 0, 0, len(parts))
