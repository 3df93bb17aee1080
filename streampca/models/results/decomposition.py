"""Linear results: the kinds, and what each of them can compute.

The kinds, each with its own fields and answers ::

    Decomposition                mean + scores times components: names, views, rows and scores
      OrthogonalProjection       rows are scored one by one: their errors
        PrincipalComponents      eigenvectors of a covariance: its model, significance
          RotatedDecomposition   other axes of the same space
          LSADecomposition       documents and terms
      CompletedDecomposition     of a matrix with holes: rows by least squares, cells
      LatentDecomposition        a Gaussian model of the rows: likelihood, posterior
        ProbabilisticDecomposition (an OrthogonalProjection too), FactorDecomposition

A kind has no method for what it cannot compute; ``instead`` says what to use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from streampca.accumulators import FeatureProjection, Reconstruction
from streampca.errors import InvalidInputError, shorten
from streampca.imported import load_public
from streampca.kernels import Array, reciprocal
from streampca.matrix import AxisLabels
from streampca.models.results.eof_views import EofViews
from streampca.models.results.linear_result import LinearResult, read_components
from streampca.models.results.projection import BackProjection, Likelihood, Projection
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowMap, RowOptions, RowPasses
from streampca.models.results.value_attributes import of_map, of_series, of_values
from streampca.report.presentation import (
    Certainty,
    FeatureMap,
    Presentation,
    carried_share,
    percentages,
)
from streampca.solvers import (
    UNDETERMINED,
    Certificate,
    Concentration,
    TracyWidom,
    concentrations,
    tracy_widom_test,
)
from streampca.solvers.rotation import RESTARTS


@dataclass(frozen=True, repr=False, kw_only=True)
class Decomposition(LinearResult):
    """The result of a fit: saved, plotted, compared and applied as it is.

    components : (k, p) orthonormal rows, or None (a wide fit with ``components=False``).
    explained_variance : (k,) descending.  total_variance : of all components, kept or not.
    mean : (p,).  scale : (p,) divisors, 0 = a constant column; None = not scaled.
    scores : (n, k) of the training rows, where the fit has them (wide fits); else None.
    n_samples : rows of the fit, 0 where they are not known (a covariance alone).
    dropped : indices of features without any observation.  constant : of those that never vary.
    filtered : of those left out for their frequency, missing share or weight of 0.
    weights : (p,) that multiplied the centred and scaled features, or None.
    Where the fit streamed its components, arrays of features are stored with them: such fields are
    a :class:`Column`, which is read on use (``np.asarray(result.mean)``).
    removal : what a design took out of the samples, or None; ``design`` and the coefficients of its
        columns, ``removed_coefficients``, are read from it.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, Decomposition
    >>> X = np.random.default_rng(0).normal(size=(50, 4)) * [2, 2, 1, 1]
    >>> result = PCA(2).fit(X).result_
    >>> isinstance(result, Decomposition), result.components.shape
    (True, (2, 4))
    >>> result.top_features(0, n=1)[0][0]
    'feature 0'
    """

    instead: ClassVar[Mapping[str, str]] = {}  # method that this kind lacks -> what to use
    rotated_as: ClassVar[tuple[str, str]] = ("RotatedPCA", "rotated model")  # estimator, kind

    @property
    def estimator(self) -> str:
        """The kind of estimator that loads this; see :mod:`~streampca.models.contract.registry`."""
        return self.method.removesuffix(" from covariance")

    @property
    def eof(self) -> EofViews:
        """EOFs, PCs, correlation and covariance maps, sampling errors: views for climate data."""
        return EofViews(self)

    def rotate(
        self,
        method: str = "varimax",
        k: int | None = None,
        *,
        normalize: bool = True,
        power: float = 4.0,
        restarts: int = RESTARTS,
    ) -> Any:
        """The first k components rotated by "varimax" or "promax": ``streampca.rotate``."""
        name, kind = self.rotated_as
        load_public(name)
        rotated: Any = self.kinds[kind]
        options = {"normalize": normalize, "power": power, "restarts": restarts}
        return rotated.of(self, method, k, **options)

    def permuted_parts(self, order: Array, sign: Array) -> dict[str, Any]:
        """Additional fields of this kind that follow the order and sign, (k,), of components."""
        return {}

    def with_components(self, path: str | os.PathLike[str]) -> Decomposition:
        """This result with the components that its fit streamed to Zarr (``loadings=``), in memory.

        Raises SourceError where they are not there, InvalidInputError where they are of another.
        """
        return replace(self, components=read_components(path, self))

    def top_features(
        self, component: int = 0, n: int = 10, sign: int | None = None
    ) -> list[tuple[str, float]]:
        """The n features with the largest |loading| on a component (0 = the first), by name.

        sign : 1 or -1 for the largest of that sign alone: one end of the component.  Genes that
            ids name, in an AnnData with ``feature_name`` or ``gene_symbols``, go by these symbols.
        Raises InvalidInputError.
        """
        signs = (None,) if self.takes_complex else (None, 1, -1)
        if component not in range(self.n_components) or sign not in signs:
            raise InvalidInputError(
                f"component={component!r}, sign={sign!r}; expected a component from 0 to "
                f"{self.n_components - 1}, and a sign of 1, -1 or None"
            )
        deviation = np.sqrt(self.explained_variance[component])
        column = self.require_components()[component] * deviation
        size = np.abs(column) if sign is None else sign * column
        order = np.argsort(-size, kind="stable")[:n]
        order = (order if sign is None else order[size[order] > 0]).tolist()
        return list(zip(self.labels.features.shown(order), column[order].tolist(), strict=True))

    def table(self, rows: int = 10) -> str:
        """The leading part of the spectrum, one component a line, with the bounds of each."""
        certificate, shares = self.certificate, self.explained_variance_ratio
        head = f"{'component':>9} {'variance':>12} {'share':>8} {'cumulative':>10}"
        lines = [head + ("" if certificate is None else f" {'+-':>14} {'angle <=':>14}")]
        for i, variance in enumerate(self.explained_variance[:rows]):
            line = f"{i + 1:>9} {variance:>12.6g} {shares[i]:>8.2%} {shares[: i + 1].sum():>10.2%}"
            if certificate is not None:
                line += _bound(certificate.variance_bound[i], variance)
                line += _bound(certificate.angle_bound[i], UNDETERMINED)
            lines.append(line)
        if self.n_components > rows:
            lines.append(f"      ... {self.n_components - rows} more")
        return "\n".join(lines)

    def to_xarray(self) -> Any:
        """Everything with its labels, as an xarray.Dataset: stacked dimensions are unstacked.

        ``components`` (component, feature dimensions), ``mean``, ``explained_variance``,
        ``explained_variance_ratio`` and, where the fit has them, ``scores``. Components count
        from 1. Features without any observation are NaN. A fit of several variables gives
        ``components_sst``, ``mean_sst`` and so on. A genotype fit adds ``eigenvalues``,
        ``eigenvectors``, ``frequency`` of the counted allele (a coordinate of the variants) and
        ``observed_alleles`` behind it, ``used`` variants, ``tracy_widom_p``,
        ``missing_by_sample`` and, where others were scored too, the ``fitted`` samples.
        """
        from streampca.sources.labelled.to_xarray import to_dataset

        labels, component = self.labels, self.component_axis
        tables: dict[str, tuple[Array, list[AxisLabels]]] = {
            "explained_variance": (self.explained_variance, [component]),
            "explained_variance_ratio": (self.explained_variance_ratio, [component]),
            "mean": (self._observed(np.array(self.mean)), [labels.features]),
        }
        if self.components is not None:
            eofs = self._observed(np.array(self.components))
            tables["components"] = (eofs, [component, labels.features])
        if self.scores is not None:
            tables["scores"] = (self.scores, [labels.samples, component])
        more, known = self.in_dataset()
        attrs_of: dict[str, Any] = {
            "mean": partial(of_values, labels),
            "components": partial(of_map, self, what="components (as they are) of", power=0),
            "scores": of_series(self, "scores of", 1),
            "explained_variance": of_series(self, "variances of the scores of", 2),
            "explained_variance_ratio": of_series(self, "shares of the total variance of", 0),
        }
        attributes = {"method": self.method, "n_samples": self.n_samples, **known}
        return to_dataset(tables | more, attributes, attrs_of)

    def presentation(self) -> Presentation:
        """What pictures and reports show of it; see the base class."""
        shares, variances = self.explained_variance_ratio, self.explained_variance
        maps = {
            "eof": FeatureMap(self._eofs, lambda variable: "EOF (unit vector)"),
            "correlation": FeatureMap(
                self._correlations,
                lambda variable: f"Correlation of the PC with {self._what(variable)}",
            ),
            "covariance": FeatureMap(self._covariances, self._unit_of_covariances),
        }
        return replace(
            super().presentation(),
            pictures="plots.scree, plots.spectrum or plots.loadings",
            component="PC",
            remarks=percentages(shares),
            deviations=np.sqrt(np.maximum(variances, 0.0)),
            shares=shares,
            carries=carried_share(shares),
            variances=variances,
            certainty=None if self.certificate is None else _certainty(self.certificate),
            noise_variance=self.noise_variance,
            mean=self.mean,
            components_of=self.require_components,
            correlations=self._correlations,
            maps=maps,
            left_out={
                "without observation": self.dropped,
                "constant": self.constant,
                "filtered": self.filtered,
            },
            largest_feature=self._largest_feature,
        )

    def _largest_feature(self) -> tuple[str, float] | None:
        if self.standardised or self.weighted or self.feature_variance is None:
            return None
        variance = np.asarray(self.feature_variance)
        if not len(variance):
            return None
        share = float(variance.max() / (variance.sum() or 1.0))
        return self.labels.features.name(int(np.argmax(variance))), share

    def _eofs(self, indices: list[int]) -> Array:
        return self._observed(np.array(self.require_components()[indices], dtype=np.float64))

    def _correlations(self, indices: list[int]) -> Array:
        return self._observed(self.feature_correlations(indices))

    def _covariances(self, indices: list[int]) -> Array:
        return self._observed(self.feature_covariances(indices))

    def _observed(self, values: Array) -> Array:
        """Values of features, (..., p), in place NaN for those without any observation."""
        values[..., self.dropped] = np.nan
        return values

    def _what(self, variable: str | None) -> str:
        return variable or self.labels.name or "the data"

    def _unit_of_covariances(self, variable: str | None) -> str:
        units = self.labels.attrs_of(str(variable)).get("units")
        unit = f" [{units}]" if units else ""
        return f"{self._what(variable)}, per standard deviation of the PC{unit}"

    def refusal(self, question: str) -> InvalidInputError:
        """The error for a method that this kind does not have."""
        why = self.instead.get(question, f"a {{method}} has no {question}")
        return InvalidInputError(why.format(method=self.method))

    # -- rows -----------------------------------------------------------------------------------

    def scores_of(self, options: RowOptions) -> RowMap:
        """The map from rows to their scores, (rows, k)."""
        return Projection.of(self, options)

    def rows_of(self, whiten: bool) -> BackProjection:
        """The map from scores to rows, (rows, p), without what a design removed."""
        return BackProjection.of(self, whiten)

    def no_density(self, what: str) -> InvalidInputError:
        """The error where the covariance is singular.  what : "likelihood" or "inverse"."""
        rank, remedy = self.rank, "Rows that vary in one direction, or none, have none"
        if rank > 1:
            remedy = f"Fit fewer than the rank, for example n_components={rank - 1}"
        return InvalidInputError(
            f"the covariance of this model has no {what}: {rank} components hold all of the "
            f"variance of {self.n_dimensions} features, and no noise variance is left. {remedy}"
        )

    def r2_curve(self) -> Array:
        """(k + 1,) share of the variance of the fit that 0, 1, ..., k components carry."""
        return np.concatenate([[0.0], np.cumsum(self.explained_variance_ratio)])


def _bound(value: float, most: float) -> str:
    """A bound as an entry of the table; in words if it is uninformative."""
    return f" {value:>14.1e}" if value < most else f" {'not determined':>14}"


def _certainty(found: Certificate) -> Certainty:
    return Certainty(
        found.determined, found.variance_bound, found.floor, found.in_words(), found.angle_bound
    )


@runtime_checkable
class Reconstructing(Protocol):
    """A kind that measures how well it reconstructs rows."""

    def reconstruction_error(self, rows: RowPasses) -> float:
        """Mean over rows of the squared error of their reconstruction: one pass."""


@runtime_checkable
class GaussianModel(Protocol):
    """A kind that gives rows a Gaussian density."""

    def likelihood_of(self, options: RowOptions) -> RowMap:
        """The map from rows to their log-likelihood, (rows, 1)."""

    def covariance(self) -> Array:
        """(p, p) in the units of the data."""

    def precision(self) -> Array:
        """(p, p) inverse of the covariance. Raises InvalidInputError where it is singular."""


@dataclass(frozen=True, repr=False, kw_only=True)
class OrthogonalProjection(Decomposition):
    """Components that are orthonormal, onto which rows are projected one by one."""

    def r2_of(self, rows: RowPasses) -> Array:
        """(k + 1,) share of the variance of rows that 0, 1, ..., k components carry: one pass."""
        errors = self._squared_errors(rows)
        return np.asarray(1.0 - errors / errors[0]) if errors[0] > 0 else np.zeros(len(errors))

    def reconstruction_error(self, rows: RowPasses) -> float:
        """Mean over rows of the squared error of their reconstruction: one pass."""
        return float(self._squared_errors(rows)[-1]) / rows.matrix.shape[0]

    def _squared_errors(self, rows: RowPasses) -> Array:
        """(k + 1,) summed squared errors of 0, 1, ..., k components."""
        operands, settings = Projection.of(self, rows.options).operands()
        total: Any = FeatureProjection if rows.by_features else Reconstruction
        sums = {"total": total(**settings)}
        done = rows.fold("reconstruction", int(rows.by_features), sums, operands)["total"]
        return np.asarray(done.errors(rows.eps) if rows.by_features else done.errors())


@dataclass(frozen=True, repr=False, kw_only=True)
class PrincipalComponents(OrthogonalProjection, kind="model"):
    """The result of a PCA: orthonormal components, and variances that are eigenvalues.

    total_squares : sum of the squares of all variances, kept or not; NaN where it is not known.
    rest_cubes : sum of the third powers of those that are not kept, for limits of SPE; or NaN.
    feature_mean : (p,) where ``mean`` is not subtracted, else None.
    missing_by_sample : (n,) missing cells in all p features, where they were counted.
    fitted : (n,) True for the rows of the fit, where scores of others were made too.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> result = PCA(2).fit(np.random.default_rng(0).normal(size=(50, 4)) * [2, 2, 1, 1]).result_
    >>> result
    <PrincipalComponents: PCA: 2 components of 50 samples x 4 features>
    >>> result.covariance().shape
    (4, 4)
    """

    total_squares: float = float("nan")
    rest_cubes: float = float("nan")
    feature_mean: Array | None = shaped("p", optional=True)
    missing_by_sample: Array | None = shaped(None, optional=True)
    fitted: Array | None = shaped(None, optional=True)

    def findings(self) -> list[str]:
        """Sentences on components of which one sample, or several alike, hold more than half.

        No reason to warn: one row of counts, or one extreme month, often makes a component.
        """
        rows, scores = self.fitted_scores()
        return [holders(one, self.labels.samples, rows) for one in concentrations(scores)]

    @property
    def fitted_samples(self) -> AxisLabels:
        """The labels of the rows that were fitted."""
        samples = self.labels.samples
        return samples if self.fitted is None else samples.pick(self.fitted)

    def fitted_scores(self) -> tuple[Array, Array]:
        """(m,) numbers of the fitted rows, and their scores, (m, k), on components within the rank;
        m = 0 where the result has no scores."""
        n = len(self.labels.samples)
        fitted = np.ones(n, np.bool_) if self.fitted is None else self.fitted
        if self.scores is None or not len(self.scores) == len(fitted) == n:
            return np.zeros(0, np.int64), np.zeros((0, self.n_components))
        rows = np.flatnonzero(fitted)
        return rows, self.scores[rows, : self.rank]

    def notes(self) -> list[str]:
        """Also what :meth:`findings` says."""
        return [*super().notes(), *(f"samples    {one}" for one in self.findings())]

    def presentation(self) -> Presentation:
        """What pictures and reports show of it; see the base class."""
        return replace(super().presentation(), findings=self.findings)

    def tracy_widom(self) -> TracyWidom:
        """Significance of each component: statistic, p-value, effective number of features.

        Raises InvalidInputError where the fit iterated: the test needs the sum of the squares of
        all variances.
        """
        if not np.isfinite(self.total_squares):
            raise InvalidInputError(
                "an iterated fit does not know the sum of the squares of all variances, which the "
                "Tracy-Widom test needs; fit with solver='scatter' or 'gram'"
            )
        centred = self.feature_mean is None
        most = self.n_samples - centred if self.n_samples else self.n_features
        return tracy_widom_test(
            self.explained_variance,
            total=self.total_variance,
            squares=self.total_squares,
            count=min(most, self.n_features_used),
            rounding=self._rounding(),
        )

    def _rounding(self) -> float:
        """Relative error of the largest variance; of float32 sums where no bound is known."""
        bounds = None if self.certificate is None else self.certificate.variance_bound
        largest = float(self.explained_variance[0])
        if bounds is None or not np.isfinite(bounds[0]) or not largest > 0:
            return 1e-6
        return 2.0 * float(bounds[0]) / largest

    @property
    def noise_variance(self) -> float:
        """Mean variance of the directions left out (Tipping and Bishop 1999, eq. 3.8); 0 where
        that is rounding."""
        return 0.0 if self.rank <= self.n_components else super().noise_variance

    def likelihood_of(self, options: RowOptions) -> RowMap:
        """The map from rows to their log-likelihood under probabilistic PCA, (rows, 1).

        Raises InvalidInputError where the covariance is singular: it would be infinite.
        """
        if self.singular:
            raise self.no_density("likelihood")
        return Likelihood.of(self, options)

    def covariance(self) -> Array:
        """(p, p) V'(L - s2 I)V + s2 I, in the units of the data.  Cost: p^2 k flops.

        Source: Tipping and Bishop 1999, "Probabilistic principal component analysis", section 3.3.
        """
        v, noise = self.require_components(), self.noise_variance
        covariance = (v.T * np.maximum(self.explained_variance - noise, 0.0)) @ v
        covariance[np.diag_indices_from(covariance)] += noise
        return scaled_matrix(covariance, self.divisors)

    def precision(self) -> Array:
        """(p, p) V'L^-1 V + (I - V'V) / s2, the inverse of the covariance, in the data's units.

        0 for features that the model leaves out. Raises InvalidInputError where the covariance
        is singular.  Cost: p^2 k flops; nothing is inverted.
        """
        v, noise = self.require_components(), self.noise_variance
        k, dimensions = self.n_components, self.n_dimensions
        variance = np.maximum(self.explained_variance, noise)
        if self.singular:
            raise self.no_density("inverse")
        precision = (v.T / variance) @ v
        if k < dimensions:
            precision -= (v.T @ v) / noise
            precision[np.diag_indices_from(precision)] += 1.0 / noise
        divisors = self.divisors
        return scaled_matrix(precision, None if divisors is None else reciprocal(divisors))


COPIES = "near-identical samples"


def holders(one: Concentration, samples: AxisLabels, rows: Array, kind: str = COPIES) -> str:
    """``PC2: 2 near-identical samples (a; b) hold 97% of its sum of squares``.

    rows : numbers of the samples that the vectors are of.
    """
    names = shorten(samples.names(rows[one.rows[:4]].tolist()), len(one.rows))
    many = len(one.rows) > 1
    who = f"{len(one.rows)} {kind} ({names}) hold" if many else f"{names} alone holds"
    return f"PC{one.component + 1}: {who} {one.share:.0%} of its sum of squares"


def scaled_matrix(values: Array, factors: Array | None) -> Array:
    """Multiply rows and columns of a matrix by factors, in place; None: unchanged."""
    if factors is not None:
        values *= factors[:, None] * factors[None, :]
    return np.asarray(values)
