"""The arrays of a linear model, and what follows from them algebraically."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, weighted_divisors
from streampca.matrix.labels import plain
from streampca.matrix.places import on_globe
from streampca.models.results.result import Result, part, places, shaped
from streampca.models.results.score_scaling import as_transformed
from streampca.models.side_data.design import Design, Removal, basis_at
from streampca.passes import single_threaded_blas
from streampca.solvers import Certificate, complete_columns
from streampca.store import check_fields, check_shapes, read_labelled

COMPONENTS = "components"  # the name of the array to which a fit streams them


@dataclass(frozen=True, repr=False, kw_only=True)
class ResidualResult(Result):
    """A kind whose rows are centred, and from whose samples the fit may have removed a design.

    mean : (p,).  removal : the design, and what it adds to every feature; or None.
    """

    mean: Array = shaped("p")
    removal: Removal | None = part(Removal.save, Removal.restore)

    @property
    def design(self) -> Design | None:
        """What was projected out of the samples, or None."""
        return None if self.removal is None else self.removal.design

    @property
    def removes(self) -> bool:
        """Whether a design is projected out of the samples."""
        return self.removal is not None

    def removed_from(self, matrix: ChunkedMatrix, remove: Any) -> tuple[Array, Array] | None:
        """(basis (n, r), coefficients (1 + r, p)) of what the fit removed; see the base class.

        remove : the arrays of the design, or False; columns that the fit had by name are those of
            the same name. Raises InvalidInputError.
        """
        basis = basis_at(self.design, matrix, remove)
        if basis is None or self.removal is None:
            return None
        return basis, np.vstack([self.mean, self.removal.coefficients])

    def check(self, where: str) -> None:
        """Check types and shapes after loading. Raises DamagedSourceError."""
        super().check(where)
        if self.removal is not None:
            self.removal.check(self.n_features, where, self.takes_complex)


@dataclass(frozen=True, repr=False, kw_only=True)
class LinearResult(ResidualResult):
    """Rows as mean + scores times components; :class:`Decomposition` adds what is computed.

    The fields are those of a Decomposition.
    """

    explained_variance: Array = shaped("k")
    total_variance: float
    ddof: int
    rank: int
    components: Array | None = shaped("k", "p", optional=True)
    scale: Array | None = shaped("p", optional=True)
    spectrum: Array | None = shaped(None, optional=True)  # all eigenvalues, where they are known
    dropped: Array = places()
    constant: Array = places()
    filtered: Array = places()
    missing: Array | None = shaped("p", optional=True)  # missing cells among the rows of the fit
    certificate: Certificate | None = part(
        lambda one, arrays: one.to_dict(), lambda saved, arrays: Certificate.from_dict(saved)
    )
    weight: float = 0.0  # sum of the row weights (the number of rows without weights)
    feature_variance: Array | None = shaped("p", optional=True)  # in the units of the data
    weights: Array | None = shaped("p", optional=True)

    principal: ClassVar[bool] = True  # explained variances are eigenvalues of the sample covariance

    @property
    def n_components(self) -> int:
        """k."""
        return len(self.explained_variance)

    @property
    def n_features_used(self) -> int:
        """Features that have observations, vary, and were not filtered."""
        return self.n_features - len(self.dropped) - len(self.constant) - len(self.filtered)

    @property
    def rank_is_exact(self) -> bool:
        """Whether ``rank`` is the rank; where not all values were computed it may be a lower
        bound: all of those that are known stand above rounding."""
        return self.spectrum is not None or self.rank <= self.n_components

    @property
    def divisors(self) -> Array | None:
        """(p,) divisors of the columns, 0 for those that the model leaves out; None: nothing is.

        ``scale`` over ``weights``, or, where nothing was scaled, 1 and 0 for features without any
        observation.
        """
        if self.weights is None and (self.scale is not None or not len(self.dropped)):
            return None if self.scale is None else np.asarray(self.scale)
        divisors = np.ones(self.n_features) if self.scale is None else np.array(self.scale)
        if self.weights is not None:
            divisors = weighted_divisors(divisors, self.weights)
        divisors[self.dropped] = 0.0
        return divisors

    @property
    def removed_coefficients(self) -> Array:
        """(c, p) what each column of the design (``design.names``) adds to every feature, per unit
        in addition to the mean; of columns that repeat each other the smallest that do."""
        return np.zeros((0, self.n_features)) if self.removal is None else self.removal.by_column

    @property
    def n_dimensions(self) -> int:
        """Dimension of the space that is modelled: unscaled constant features belong to it."""
        divisors = self.divisors
        return self.n_features if divisors is None else int(np.count_nonzero(divisors))

    @property
    def explained_variance_ratio(self) -> Array:
        """(k,) share of the total variance."""
        if self.total_variance <= 0:
            return np.zeros(self.n_components)
        return np.asarray(self.explained_variance / self.total_variance)

    @property
    def singular_values(self) -> Array:
        """(k,) of the centred (and scaled) matrix."""
        freedom = max(self.weight - self.ddof, 0.0)
        return np.asarray(np.sqrt(self.explained_variance * freedom))

    @property
    def score_deviation(self) -> Array:
        """(k,) standard deviations of the scores, by which whitening divides them.

        0 for components after the rank: their variance is rounding, and so are their scores.
        """
        real = np.arange(self.n_components) < self.rank
        return np.where(real, np.sqrt(np.maximum(self.explained_variance, 0.0)), 0.0)

    @property
    def score_spread(self) -> Array:
        """(k,) standard deviations that the scores of the fit have, without whitening."""
        return np.asarray(np.sqrt(np.maximum(self.explained_variance, 0.0)))

    @property
    def noise_variance(self) -> float:
        """Mean variance of the directions left out (Tipping and Bishop 1999, eq. 3.8)."""
        left = min(self.n_samples or self.n_dimensions, self.n_dimensions) - self.n_components
        if left <= 0:
            return 0.0
        return max(float(self.total_variance - np.sum(self.explained_variance)), 0.0) / left

    @property
    def singular(self) -> bool:
        """Whether a Gaussian with these components has no density: the components hold all of the
        variance, to rounding, and there are more dimensions than such components."""
        return self.rank <= self.n_components and self.rank < self.n_dimensions

    @property
    def loadings(self) -> Array:
        """(p, k) components scaled by the square root of their variance."""
        return np.asarray(self.require_components().T * np.sqrt(self.explained_variance))

    @property
    def standardised(self) -> bool:
        """Whether features were scaled, so that scores have no unit."""
        return self.scale is not None

    @property
    def divided_by_deviations(self) -> bool:
        """Whether every feature was divided by its standard deviation in the rows of the fit."""
        if self.scale is None or self.feature_variance is None:
            return False
        scale, deviation = np.asarray(self.scale), np.sqrt(np.asarray(self.feature_variance))
        used = scale > 0.0
        return bool(used.any() and np.allclose(scale[used], deviation[used], atol=0.0))

    @property
    def weighted(self) -> bool:
        """Whether features had weights."""
        return self.weights is not None

    @property
    def projectors(self) -> Array:
        """(k, p) projectors from standardised rows to scores: the components, unless rotated."""
        return self.require_components()

    @property
    def structure(self) -> Array:
        """(p, k) covariance of standardised features with scores of unit variance."""
        return self.loadings

    @property
    def streamed_to(self) -> str | None:
        """The path to which the fit wrote its components, where they were not kept in memory."""
        return self.settings.get("loadings")

    def require_components(self) -> Array:
        """(k, p) components; those that the fit streamed to Zarr are read from there each time.

        Raises InvalidInputError that says how to get them, SourceError where they are gone.
        """
        if self.components is None:
            if (path := self.streamed_to) is not None:
                try:
                    return read_components(path, self)
                except (SourceError, InvalidInputError) as error:
                    raise type(error)(
                        f"the components of this fit were streamed to {path}, and are read from "
                        f"there: {error}. Elsewhere: result.with_components(path); streampca "
                        "project --loadings PATH"
                    ) from None
            raise InvalidInputError(
                "this fit has scores but no components (components=False saved the second pass); "
                "fit again with components=True"
            )
        return self.components

    def unscaled_scores(self, scores: Any, whitened: bool = False) -> Any:
        """Scores as ``transform`` gives them; see the base class."""
        return as_transformed(scores, self.component_axis, self, whitened)

    def feature_covariances(self, components: Any = slice(None)) -> Array:
        """(components, p) covariances of features with scores of unit variance, in the units of
        the data; NaN where a filter left a feature out.  components : indices of some."""
        covariances = np.array(self.structure[:, components].T, order="C")
        covariances[:, self.filtered] = np.nan
        return covariances if self.divisors is None else covariances * self.divisors

    def feature_correlations(self, components: Any = slice(None)) -> Array:
        """(components, p) correlations of features with scores; NaN where a feature never varies,
        or was left out. Raises InvalidInputError where the variances are not known."""
        if self.feature_variance is None:
            raise InvalidInputError(
                "this result has no variances of its features, which correlations need; its "
                "covariances are known: model.eof_.as_covariance()"
            )
        covariances = self.feature_covariances(components)
        deviation = np.sqrt(np.maximum(np.asarray(self.feature_variance), 0.0))
        deviation[self.constant] = 0.0  # else rounding is divided by rounding
        undefined = np.full_like(covariances, np.nan)
        return np.asarray(np.divide(covariances, deviation, out=undefined, where=deviation > 0))

    def in_dataset(self) -> tuple[dict[str, tuple[Array, list[AxisLabels]]], dict[str, Any]]:
        """(further variables of ``to_xarray``, each (values of any shape, labels of its axes);
        attributes)."""
        return {}, {}

    # -- at rest --------------------------------------------------------------------------------

    def check(self, where: str) -> None:
        """Look at types and shapes of what was read. Raises DamagedSourceError."""
        super().check(where)
        if self.certificate is not None:
            shapes: dict[str, tuple[int | None, ...]] = dict.fromkeys(
                ("residual", "variance_bound", "gap", "angle_bound"), (self.n_components,)
            )
            check_fields(self.certificate, f"{where}: certificate")
            check_shapes(self.certificate, shapes, f"{where}: certificate")

    # -- in words -------------------------------------------------------------------------------

    @property
    def identity(self) -> tuple[Any, ...]:
        """The arrays (or None) by which scores are known to be of this model."""
        return self.components, self.mean, self.explained_variance

    def summary(self) -> dict[str, Any]:
        """The result in numbers, JSON-ready."""
        return super().summary() | {
            "explained_variance": self.explained_variance.tolist(),
            "explained_variance_ratio": self.explained_variance_ratio.tolist(),
            "total_variance": self.total_variance,
            "rank": self.rank if self.rank_is_exact else None,
            "rank_at_least": self.rank,
            "dropped_features": len(self.dropped),
            "constant_features": len(self.constant),
            "filtered_features": len(self.filtered),
            "used_features": self.n_features_used,
            "certificate": self.certificate and self.certificate.to_dict(),
        }

    def record(self) -> dict[str, Any]:
        """The entry of its model in the manifest of a version."""
        return super().record() | {
            "explained_variance": plain(self.explained_variance),
            "total_variance": self.total_variance,
            "certificate": self.certificate and self.certificate.to_dict(),
        }

    def notes(self) -> list[str]:
        """The number of features without information, if there are any."""
        if not len(self.dropped) and not len(self.constant):
            return []
        gone = f"{len(self.dropped)} without observation"
        if len(self.dropped) and on_globe(self.labels.features, self.dropped):
            gone += " (land?)"
        used = f"{self.n_features_used} of {self.n_features} used"
        return [f"features   {used}; {gone}, {len(self.constant)} constant"]


# Components that a fit streamed to Zarr.


def read_components(path: str | os.PathLike[str], result: Any) -> Array:
    """(k, p) float64 that the fit of this result streamed, orthonormal and completed after the
    rank, as they are where a fit holds them.

    Raises SourceError where they are not there, InvalidInputError where they are of another fit.
    """
    stored, variance = read_labelled(path, COMPONENTS, "explained_variance")
    shape = (result.n_features, result.n_components)
    if stored.shape != shape or not np.array_equal(variance, result.explained_variance):
        raise InvalidInputError(
            f"{path}: components of {stored.shape[0]} features x {stored.shape[1]} that another "
            f"fit wrote; expected those of this one, {shape[0]} x {shape[1]}"
        )
    columns = np.array(stored, dtype=np.float64, order="F")
    dead = np.union1d(result.dropped, result.constant)
    if result.scale is not None:
        dead = np.union1d(dead, np.flatnonzero(result.scale == 0.0))
    with single_threaded_blas():
        complete_columns(columns, result.rank, dead)
    return columns.T
