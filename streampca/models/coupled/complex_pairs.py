"""Pairs of patterns of two complex fields: complex and Hilbert MCA, CCA and what lies between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import VIEWS, Labels, Pair, paired
from streampca.matrix.labels import AxisLabels
from streampca.models.contract.estimator import Estimator, attach
from streampca.models.contract.parameters import declared, parameter
from streampca.models.contract.registry import loaded
from streampca.models.contract.request import whole_number
from streampca.models.eof.complex_eof import ComplexEOF
from streampca.models.eof.complex_result import ComplexDecomposition
from streampca.models.results.result import Result, part, shaped
from streampca.models.results.value_attributes import of_correlation, of_map
from streampca.models.two_views.cpcca import degrees_of
from streampca.models.two_views.labelled import apart
from streampca.passes import Plan, single_threaded_blas
from streampca.solvers import rotate_loadings, signs_of_components
from streampca.solvers.rotation import METHODS
from streampca.sources import as_matrix, counted
from streampca.sources.tables.row_names import named_rows


def _nested(name: str) -> Any:
    """A field that is a result of its own, saved with the names of its arrays after its own."""

    def save(one: Result, arrays: dict[str, Array]) -> Any:
        own, document = one.to_saved()
        arrays |= {f"{name}.{key}": values for key, values in own.items()}
        return document

    def restore(saved: Any, arrays: dict[str, Array]) -> Any:
        keys = [key for key in arrays if key.startswith(f"{name}.")]
        own = {key.partition(".")[2]: arrays.pop(key) for key in keys}
        return ComplexDecomposition.from_saved(own, saved, name)

    return part(save, restore)


@dataclass(frozen=True, repr=False, kw_only=True)
class ComplexPairs(Result, kind="complex pairs"):
    """Pairs of complex patterns of X (n, p) and Y (n, q).

    values : (k,) real, singular values of the cross-covariance of the partly whitened fields;
        rotated: the products of the lengths of both patterns.  spectrum : all before a rotation.
    x, y : each field as a :class:`ComplexDecomposition` whose components (k, p) are the conjugate
        weights; its scores are those of the rows of the fit.
    patterns : (p + q, k): the part of the rows that pairs describe is scores times patterns'. A
        larger phase comes earlier; phases of Y against those of X are lags between the fields.
    loadings, cross_loadings : (p + q, k) complex correlations with the scores of the same field and
        of the other (homogeneous and heterogeneous maps).
    rotation : (k, k) unitary but for promax, or None.

    Examples
    --------
    >>> X = np.exp(1j * np.arange(60.0)[:, None] * [0.1, 0.3, 0.7])
    >>> result = streampca.ComplexCPCCA(2, alpha=1).fit(X, X[:, ::-1]).result_
    >>> result.x.components.dtype, result.patterns.shape
    (dtype('complex128'), (6, 2))
    """

    values: Array = shaped("k")
    spectrum: Array = shaped(None)
    patterns: Array = shaped("p", "k")
    loadings: Array = shaped("p", "k")
    cross_loadings: Array = shaped("p", "k")
    rotation: Array | None = shaped("k", "k", optional=True)
    x: ComplexDecomposition = _nested("x")  # noqa: RUF009
    y: ComplexDecomposition = _nested("y")  # noqa: RUF009

    takes_complex: ClassVar[bool] = True

    @property
    def n_components(self) -> int:
        return len(self.values)

    @property
    def squared_covariance_fraction(self) -> Array:
        """(k,) squares of the values over those of all pairs."""
        return np.asarray(self.values**2 / np.sum(self.spectrum**2))

    def part_of(self, name: str, values: Array) -> Array:
        """The entries (p, ...) of one field, "x" or "y", of an array (p + q, ...)."""
        return np.asarray(values[self.labels.features.slices[name]])

    def to_xarray(self) -> Any:
        """All of it as one Dataset: ``values``, ``squared_covariance_fraction`` and, of each field,
        ``patterns_x``, ``amplitude_x``, ``phase_x``, ``loadings_x``, ``cross_loadings_x``,
        ``scores_x``."""
        from streampca.sources.labelled.to_xarray import to_dataset

        component = self.component_axis
        tables: dict[str, Any] = {
            "values": (self.values, [component]),
            "squared_covariance_fraction": (self.squared_covariance_fraction, [component]),
        }
        attrs: dict[str, Any] = {}
        sides = {"x": self.x, "y": self.y}
        axes = apart(*(one.labels.features for one in sides.values()))
        for (name, one), features in zip(sides.items(), axes, strict=True):
            tables[f"scores_{name}"] = (one.scores, [self.labels.samples, component])
            patterns = self.part_of(name, self.patterns)
            each = {
                "patterns": (patterns, partial(of_map, one, what="patterns of", power=0)),
                "amplitude": (np.abs(patterns), None),
                "phase": (np.angle(patterns), {"units": "radian"}),
                "loadings": (self.part_of(name, self.loadings), partial(of_correlation, one)),
                "cross_loadings": (
                    self.part_of(name, self.cross_loadings),
                    partial(of_correlation, one),
                ),
            }
            for what, (values, described) in each.items():
                array = np.array(values.T)
                array[:, one.dropped] = np.nan
                tables[f"{what}_{name}"] = (array, [component, features])
                if described is not None:
                    attrs[f"{what}_{name}"] = described
        return to_dataset(tables, {"method": self.method, "n_samples": self.n_samples}, attrs)


@loaded
@declared
class ComplexCPCCA(Estimator):
    """MCA, CCA and what lies between of complex fields: ``ComplexCPCCA(3, alpha=1).fit(X, Y)``.

    ``alpha=1`` is complex MCA, 0 CCA, (0, 1) RDA, as of :class:`CPCCA`. Hilbert forms, for
    patterns that travel and lag: of the analytic signals,
    ``fit(streampca.analytic(X), streampca.analytic(Y))``. Each field is read as its complex EOFs.

    Attributes
    ----------
    singular_values_ (k,), x_patterns_ (p, k) and y_patterns_ (q, k) complex,
    squared_covariance_fraction_; result_: :class:`ComplexPairs`, which says what these are;
    eofs_: the two :class:`ComplexEOF`, each with its plan, cost and certificate. What follows them
    is exact to rounding.
    The phase of a pair is free: that of ``x_patterns_`` is chosen as of a component of
    :class:`ComplexEOF`, and Y follows, so that covariances of paired scores are real and positive.

    Cost: a complex EOF analysis of each field (by the way that it plans), a read more where that
    kept no scores; then r^3 flops of r components.
    Raises InvalidInputError, NonFiniteError (holes), MemoryLimitError.
    Source: Swenson 2015, J. Climate 28, section 2, of complex fields as Horel 1984, J. Climate
    Appl. Meteor. 23; rotation: Elipot et al. 2017, J. Climate 30, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import ComplexCPCCA, analytic
    >>> t, x = np.arange(96.0)[:, None], np.arange(6.0)
    >>> early, late = (np.cos(2 * np.pi * (t - lag) / 24 - 0.5 * x) for lag in (0, 3))
    >>> pairs = ComplexCPCCA(1, alpha=1, pca=2).fit(analytic(early), analytic(late))
    >>> lag = np.angle(pairs.x_patterns_ * pairs.y_patterns_.conj())[:, 0] * 24 / (2 * np.pi)
    >>> lag.round()  # Y comes so many steps later
    array([3., 3., 3., 3., 3., 3.])
    """

    n_components: int = parameter(default=2, kw_only=False, meaning="pairs.")
    alpha: Any = parameter(
        default=0.2,
        meaning="""degree of whitening from 0 (whole) to 1 (none), of both fields, or a pair
            (a1, a2).""",
    )
    pca: Any = parameter(
        default=None,
        meaning="""of the leading complex EOFs of each field: a number, a share of the variance such
            as 0.99, None (all), or a pair of these.""",
    )
    scale: str | None = parameter(default=None, meaning="""None, or "std", as in ComplexEOF.""")
    weights: Any = parameter(
        default=None, needs_data=True, meaning="""None, or "coslat", of both fields, as in PCA."""
    )
    remove: Any = parameter(
        default=None, needs_data=True, meaning="what is projected out of both, as in PCA."
    )
    rotation: str | None = parameter(
        default=None,
        meaning="""None, "varimax", "quartimax" or "promax", of the patterns of X above those of Y,
            times the roots of the values.""",
    )
    normalize: bool = parameter(
        default=True, meaning="of the rotation, as :func:`streampca.rotate`."
    )
    power: float = parameter(default=4.0, meaning="of the rotation, as :func:`streampca.rotate`.")
    takes_complex: ClassVar[bool] = True
    result_: ComplexPairs

    def plan(self, X: Any, Y: Any = None, *, dim: Any = None) -> dict[str, Plan]:  # type: ignore[override]
        """The plans of the complex EOFs of X (n, p) and Y (n, q). Reads nothing.

        Raises MemoryLimitError.
        """
        pair, models = self._opened_pair(X, Y, dim), self._models()
        views = zip(VIEWS, models, (pair.x, pair.y), strict=True)
        return {name: model.plan(view) for name, model, view in views}

    def fit(self, X: Any, Y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X (n, p) and Y (n, q), complex, as ``streampca.open`` takes them; rows are paired
        by their labels as by :class:`MCA`.

        Raises InvalidInputError, MemoryLimitError before reading; NonFiniteError for holes.
        """
        degrees = degrees_of(self.alpha)
        if self.rotation not in (None, *METHODS):
            raise InvalidInputError(
                f"rotation={self.rotation!r}; expected None or one of {', '.join(METHODS)}"
            )
        pair, models = self._opened_pair(X, Y, dim), self._models()
        fields = []
        for model, view in zip(models, (pair.x, pair.y), strict=True):
            fields.append(_Field.of(model.fit(view), view))
        for field, degree in zip(fields, degrees, strict=True):
            if not degree and field.scores.shape[1] >= len(field.scores) - 1:
                raise InvalidInputError(
                    f"{len(field.scores)} rows and as many components: wholly whitened, they fit "
                    f"anything. Take alpha={self.alpha!r} with pca=10, or a larger alpha=0.2"
                )
        with single_threaded_blas():
            found = self._pairs(fields, degrees)
        attach(self, replace(found, labels=_joint_labels(pair), settings=self.stored_params()))
        self.eofs_, self.dim_ = dict(zip(VIEWS, models, strict=True)), dim
        return self

    def transform(  # type: ignore[override]
        self, X: Any = None, Y: Any = None, *, dim: Any = None, remove: Any = None
    ) -> Any:
        """(scores of X, scores of Y), (rows, k) complex; of one field alone those of it.

        Cost: a pass over each. Raises InvalidInputError for no rows, and rows of other features.
        """
        result = self._result_as(ComplexPairs)
        made = []
        for rows, one in ((X, result.x), (Y, result.y)):
            if rows is not None:
                view: Any = attach(ComplexEOF.restored(one.settings), one)
                view.dim_ = self.dim_
                made.append(view.transform(rows, dim=dim, remove=remove))
        if not made:
            raise InvalidInputError("no rows: expected transform(X, Y), or one of them")
        return tuple(made) if len(made) > 1 else made[0]

    @property
    def singular_values_(self) -> Array:
        """(k,) the values of the pairs, descending."""
        return self.result_.values

    @property
    def squared_covariance_fraction_(self) -> Array:
        """(k,) squares of the values over those of all pairs."""
        return self.result_.squared_covariance_fraction

    @property
    def x_patterns_(self) -> Array:
        """(p, k) complex: what a score adds to X."""
        return self.result_.part_of("x", self.result_.patterns)

    @property
    def y_patterns_(self) -> Array:
        """(q, k) complex: what a score adds to Y."""
        return self.result_.part_of("y", self.result_.patterns)

    def _opened_pair(self, X: Any, Y: Any, dim: Any) -> Pair:
        if Y is None:
            raise InvalidInputError("a ComplexCPCCA relates two fields; expected fit(X, Y)")
        opened = [
            as_matrix(counted(one), dim=dim, missing_value=self.missing_value, complex_values=True)
            for one in (X, Y)
        ]
        return paired(*named_rows(opened, ("X", "Y")))

    def _models(self) -> list[ComplexEOF]:
        kept = self.pca if isinstance(self.pca, (tuple, list)) else (self.pca, self.pca)
        if len(kept) != 2:
            raise InvalidInputError(f"pca={self.pca!r}; expected a number, or one for each field")
        shared = ("scale", "weights", "remove", "memory_limit", "scheduler", "threads", "progress")
        options = {name: getattr(self, name) for name in shared}
        return [ComplexEOF(k, **options) for k in kept]

    def _pairs(self, fields: list[_Field], degrees: tuple[float, float]) -> ComplexPairs:
        """The pairs of both fields, in the space of their components."""
        n = len(fields[0].scores)
        powers = [
            field.variances ** ((degree - 1.0) / 2.0)
            for field, degree in zip(fields, degrees, strict=True)
        ]
        white = [field.scores * power for field, power in zip(fields, powers, strict=True)]
        left, spectrum, right = np.linalg.svd(white[0].conj().T @ white[1] / (n - 1.0))
        k = whole_number("n_components", self.n_components, 1, len(spectrum))
        bases = [left[:, :k], right[:k].conj().T]
        weights = [power[:, None] * one for power, one in zip(powers, bases, strict=True)]
        shapes = [one / power[:, None] for power, one in zip(powers, bases, strict=True)]
        values, rotation = spectrum[:k], None
        if self.rotation is not None:
            features = [field.features(one) for field, one in zip(fields, shapes, strict=True)]
            stacked = np.vstack(features) * np.sqrt(values)
            options: dict[str, Any] = {"normalize": self.normalize, "power": self.power}
            rotation = rotate_loadings(stacked, self.rotation, **options).matrix
            lengths = np.sum(values[:, None] * np.abs(rotation) ** 2, axis=0)
            order = np.argsort(-lengths, kind="stable")
            rotation, lengths = rotation[:, order], lengths[order]
            turn = np.sqrt(values)[:, None] * rotation / np.sqrt(lengths)
            weights = [one @ np.linalg.inv(turn).conj().T for one in weights]
            shapes, values = [one @ turn for one in shapes], lengths
        phase = signs_of_components(fields[0].features(shapes[0]).conj()).conj()
        weights, shapes = [one * phase for one in weights], [one * phase for one in shapes]
        scores = [field.scores @ one for field, one in zip(fields, weights, strict=True)]
        own = [f.correlations(one) for f, one in zip(fields, scores, strict=True)]
        other = [f.correlations(one) for f, one in zip(fields, scores[::-1], strict=True)]
        views = [f.view(one, s) for f, one, s in zip(fields, weights, scores, strict=True)]
        return ComplexPairs(
            method="ComplexCPCCA",
            n_samples=n,
            values=values,
            spectrum=spectrum,
            patterns=np.vstack([f.features(s) for f, s in zip(fields, shapes, strict=True)]).conj(),
            loadings=np.vstack(own),
            cross_loadings=np.vstack(other),
            rotation=None if rotation is None else rotation * phase,
            x=views[0],
            y=views[1],
        )


@dataclass(frozen=True)
class _Field:
    """A field as its complex EOFs: scores (n, r), those that vary, with their variances (r,)."""

    result: ComplexDecomposition
    scores: Array
    variances: Array

    @classmethod
    def of(cls, model: Any, view: Any) -> Self:
        result = model.result_
        scores = result.scores
        if scores is None:
            scores = model.transform(view, remove=model.remove)
        scores = np.asarray(scores)[:, : min(result.rank, result.n_components)]
        return cls(result, scores, np.sum(np.abs(scores) ** 2, axis=0) / (len(scores) - 1.0))

    @property
    def basis(self) -> Array:
        """(r, p)."""
        return np.asarray(self.result.require_components()[: self.scores.shape[1]])

    def features(self, vectors: Array) -> Array:
        """(p, k) of vectors (r, k) of the components: weights such that scores are Z times them."""
        return np.asarray(self.basis.conj().T @ vectors)

    def correlations(self, scores: Array) -> Array:
        """(p, k) mean z conj(s) over both deviations."""
        products = self.basis.T @ (self.scores.T @ scores.conj())
        squares = np.sum(np.abs(self.basis.T) ** 2 * self.variances, axis=1)
        if (known := self.result.feature_variance) is not None:
            scale = self.result.divisors
            squares = known if scale is None else known * np.where(scale > 0, scale, np.inf) ** -2.0
        lengths = np.sqrt(squares * (len(scores) - 1.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(products / lengths[:, None] / np.linalg.norm(scores, axis=0))

    def view(self, weights: Array, scores: Array) -> ComplexDecomposition:
        """The field, whose components are the conjugate weights."""
        variances = np.sum(np.abs(scores) ** 2, axis=0) / (len(scores) - 1.0)
        return replace(
            self.result,
            components=np.ascontiguousarray(self.features(weights).conj().T),
            explained_variance=variances,
            scores=scores,
            spectrum=None,
            certificate=None,
        )


def _joint_labels(pair: Pair) -> Labels:
    parts = {"x": pair.x.labels.features, "y": pair.y.labels.features}
    return Labels(pair.x.labels.samples, AxisLabels.of_variables(parts))
