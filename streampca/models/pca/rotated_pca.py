"""Rotated principal components: other axes in the same space; the result and the estimator."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Self, overload

import numpy as np

from streampca.errors import AccuracyWarning, InvalidInputError, warn_caller
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.estimator import WeighsSamples, attach
from streampca.models.contract.linear import LinearModel, decomposition_of, in_words
from streampca.models.contract.registry import loaded, opened_as
from streampca.models.contract.request import whole_number
from streampca.models.decompose.empty_samples import ScoresEmptySamples
from streampca.models.pca.pca import PCA
from streampca.models.results.decomposition import Decomposition, PrincipalComponents
from streampca.models.results.result import shaped
from streampca.models.results.row_maps import RowMap, RowOptions, RowPasses
from streampca.passes import Outcome, Planned, single_threaded_blas
from streampca.solvers import TracyWidom, rotate_loadings, signs_of_components
from streampca.solvers.rotation import RESTARTS

OPTIONS = ("normalize", "power", "restarts")


@dataclass(frozen=True, repr=False, kw_only=True)
class RotatedDecomposition(PrincipalComponents, kind="rotated model"):
    """Loadings turned by varimax, quartimax or promax; ``method`` says by which.

    loadings : (p, k) rotated; the unrotated ones times ``rotation``.
    components : (k, p) their columns with length 1, which are not orthogonal.
    explained_variance : (k,) squared lengths of the columns, descending. They add up to the
        variance of the unrotated components, but for those of promax, which overlap.
    scores : (n, k) with these variances, so that scores @ components is the same reconstruction.
    rotation : (k, k), orthogonal but for promax.
    correlations : (k, k) of the scores (phi), the identity but for promax.
    base_variance : (k,) of the unrotated components.
    sweeps, converged : of the varimax iteration.
    starts, reached, optima : from which it was looked for, how many of them ended in this rotation,
        and how many different optima there were.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((60, 5))
    >>> streampca.rotate(streampca.PCA(3).fit(x), "varimax", k=2).result_.rotation.shape
    (2, 2)
    """

    rotation: Array = shaped("k", "k", empty=(0, 0))
    correlations: Array = shaped("k", "k", empty=(0, 0))
    base_variance: Array = shaped("k", empty=0)
    base_method: str = ""
    sweeps: int = 0
    converged: bool = True
    starts: int = 1
    reached: int = 1
    optima: int = 1

    principal: ClassVar[bool] = False
    base_kind: ClassVar[type[PrincipalComponents]] = PrincipalComponents

    def permuted_parts(self, order: Array, sign: Array) -> dict[str, Any]:
        """The rotation and the correlations, (k, k), of components that change places or signs."""
        between = self.correlations[np.ix_(order, order)] * np.multiply.outer(sign, sign)
        return {"rotation": self.rotation[:, order] * sign, "correlations": between}

    @classmethod
    def of(
        cls,
        result: Decomposition,
        method: str = "varimax",
        k: int | None = None,
        *,
        normalize: bool = True,
        power: float = 4.0,
        restarts: int = RESTARTS,
    ) -> RotatedDecomposition:
        """The first k components of a fitted result, rotated; see ``streampca.rotate``."""
        k = _checked_count(result, k)
        deviation = np.sqrt(result.explained_variance[:k])
        base = result.require_components()[:k]
        with single_threaded_blas():
            found = rotate_loadings(
                base.T * deviation,
                method,
                normalize=normalize,
                power=power,
                restarts=whole_number("restarts", restarts, 0),
            )
            lengths = np.linalg.norm(found.loadings, axis=0)
            order = np.argsort(-lengths, kind="stable")
            unit = found.loadings[:, order] / lengths[order]
            signs = signs_of_components(unit)
            turn = found.matrix[:, order] * signs
            inverse = np.linalg.inv(turn)
            scores = None
            if result.scores is not None:
                scores = (result.scores[:, :k] / result.score_spread[:k]) @ inverse.T
                scores *= lengths[order]
        if not found.converged:
            warn_caller(
                f"the rotation has not converged after {found.sweeps} sweeps (last turn "
                f"{found.angle:.1e} radians): the criterion is flat. Rotate another number of "
                "components: k=...",
                AccuracyWarning,
            )
        kept = result.fields_of(cls.base_kind)
        kept |= {
            "method": method,
            "components": np.ascontiguousarray((unit * signs).T),
            "explained_variance": lengths[order] ** 2,
            "scores": scores,
            "spectrum": None,
            "certificate": None,
        }
        return cls(
            **kept,
            rotation=turn,
            correlations=inverse @ inverse.conj().T,
            base_variance=np.array(result.explained_variance[:k]),
            base_method=result.method,
            sweeps=found.sweeps,
            converged=found.converged,
            starts=found.starts,
            reached=found.reached,
            optima=found.optima,
        )

    def unrotated(self) -> PrincipalComponents:
        """The decomposition that was rotated: its first k components."""
        lengths, deviation = np.sqrt(self.explained_variance), np.sqrt(self.base_variance)
        back = np.linalg.inv(self.rotation).T * lengths / deviation[:, None]
        kept = self.fields_of(self.base_kind)
        kept |= {
            "method": self.base_method,
            "components": back @ self.require_components(),
            "explained_variance": self.base_variance,
        }
        if self.scores is not None:
            kept["scores"] = (self.scores / lengths) @ self.rotation.T * deviation
        return self.base_kind(**kept)

    def notes(self) -> list[str]:
        """As of a PCA, and whether other rotations are optima too."""
        if self.optima == 1:
            return super().notes()
        return [
            *super().notes(),
            f"rotation   the best of {self.optima} optima, reached from {self.reached} of "
            f"{self.starts} starts",
        ]

    @property
    def estimator(self) -> str:
        """The kind of estimator that this loads as."""
        return "RotatedPCA"

    @property
    def projectors(self) -> Array:
        """(k, p) projectors from standardised rows to scores."""
        deviation = np.sqrt(self.base_variance)
        inverse = np.linalg.inv(self.rotation) * np.sqrt(self.explained_variance)[:, None]
        return np.asarray((inverse.conj() / deviation) @ self.unrotated().require_components())

    @property
    def structure(self) -> Array:
        """(p, k) covariance of features with scores of unit variance: loadings @ phi."""
        return self.loadings @ self.correlations

    @property
    def noise_variance(self) -> float:
        """The noise variance of the unrotated components: the space is the same."""
        kept = float(np.sum(self.base_variance))
        left = min(self.n_samples or self.n_dimensions, self.n_dimensions) - self.n_components
        return max(float(self.total_variance) - kept, 0.0) / left if left > 0 else 0.0

    # -- properties of the space, which rotation does not change ---------------------------------

    def likelihood_of(self, options: RowOptions) -> RowMap:
        """As of the unrotated components: the model is the same."""
        return self.unrotated().likelihood_of(options)

    def r2_curve(self) -> Array:
        """(k + 1,) as of the unrotated components."""
        return self.unrotated().r2_curve()

    def r2_of(self, rows: RowPasses) -> Array:
        """(k + 1,) as of the unrotated components: one pass."""
        return self.unrotated().r2_of(rows)

    def reconstruction_error(self, rows: RowPasses) -> float:
        """As of the unrotated components: the reconstruction is the same. One pass."""
        return self.unrotated().reconstruction_error(rows)

    def covariance(self) -> Array:
        """(p, p) as of the unrotated components: the model is the same."""
        return self.unrotated().covariance()

    def precision(self) -> Array:
        """(p, p) as of the unrotated components: the model is the same."""
        return self.unrotated().precision()

    def tracy_widom(self) -> TracyWidom:
        """Raises InvalidInputError: significance is of unrotated components."""
        raise InvalidInputError(
            "significance is that of unrotated components: result.unrotated().tracy_widom()"
        )


def _checked_count(result: Decomposition, k: int | None) -> int:
    """The number of components to rotate; None: all that vary. Raises InvalidInputError."""
    if isinstance(result, RotatedDecomposition):
        raise InvalidInputError("this result is rotated already; rotate result.unrotated()")
    values = result.explained_variance
    vary = int(np.count_nonzero(values > np.finfo(np.float64).eps * values.max(initial=0.0)))
    vary = min(vary, result.rank)  # those after it are rounding
    count = whole_number("k", vary if k is None else k, 0, beside="None or ")
    if vary and not 1 <= count <= result.n_components:
        raise InvalidInputError(
            f"k={count}; the result has {result.n_components} components. Fit more of them, or "
            "rotate fewer"
        )
    if not 1 <= count <= vary:
        raise InvalidInputError(
            f"component {vary + 1} has no variance and cannot be rotated; expected k={vary}"
        )
    return count


def _of_pca(name: str) -> Any:
    """A property that returns a parameter of the PCA."""
    return property(lambda model: getattr(model._base(), name), doc=f"``{name}`` of the PCA.")


@loaded
class RotatedPCA(ScoresEmptySamples, WeighsSamples, LinearModel):
    """PCA whose first k components are rotated by varimax, quartimax or promax.

    pca : the :class:`PCA` that is fitted first; its settings hold.
    method : "varimax" or "quartimax" (both orthogonal), or "promax" (oblique).
    k : how many components to rotate; None = all that were kept and vary.
    normalize : Kaiser's row normalisation during the varimax part.
    power : of promax.
    restarts : as in :func:`streampca.rotate`.

    ``result_`` is a :class:`RotatedDecomposition`: loadings, rotation, correlations (phi) of the
    scores, explained variance of each rotated component.
    Cost: that of the PCA, then no more reading; see ``solvers.rotation.varimax``.
    Source: Kaiser 1958; Hendrickson and White 1964; Richman 1986, J. Climatol. 6, for EOFs.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, RotatedPCA
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> model = RotatedPCA(PCA(2)).fit(X)
    >>> model.result_.rotation.shape, model.result_.converged
    ((2, 2), True)
    """

    base_class: ClassVar[type[Any]] = PCA

    def __init__(
        self,
        pca: Any = None,
        method: str = "varimax",
        k: int | None = None,
        *,
        normalize: bool = True,
        power: float = 4.0,
        restarts: int = RESTARTS,
    ) -> None:
        self.pca = pca
        self.method = method
        self.k = k
        self.normalize = normalize
        self.power = power
        self.restarts = restarts

    @classmethod
    def from_result(cls, result: Any) -> Self:
        """The estimator of a rotated result that was saved."""
        model: Self = attach(cls(cls.base_class.restored(result.settings), result.method), result)
        model.k = result.n_components
        return model

    # The fit is that of the PCA, whose result is then rotated.

    def _opened(self, X: Any, dim: Any) -> Any:
        return self._base()._opened(X, dim)

    def _drawn(self) -> dict[str, int]:
        return self._base()._drawn()

    def _request(self, matrix: ChunkedMatrix, **side: Any) -> Any:
        return self._base()._request(matrix, **side)

    def _planned(self, matrix: ChunkedMatrix, request: Any) -> Planned[Any]:
        return self._base()._planned(matrix, request)

    def _remark(self, matrix: ChunkedMatrix, request: Any) -> None:
        self._base()._remark(matrix, request)

    def _warm_start(self, matrix: ChunkedMatrix, request: Any) -> Any:
        return copy.copy(self._base())._warm_start(matrix, request)

    def _result(
        self, matrix: ChunkedMatrix, request: Any, done: Outcome[Any]
    ) -> RotatedDecomposition:
        # A copy: the attributes of the PCA are those of its own fit.
        return self._rotated(copy.copy(self._base())._result(matrix, request, done))

    def _rotated(self, result: Decomposition) -> RotatedDecomposition:
        options: dict[str, Any] = {name: getattr(self, name) for name in OPTIONS}
        self.result_: RotatedDecomposition
        rotated: RotatedDecomposition = result.rotate(self.method, self.k, **options)
        return rotated

    # -- the settings of the PCA ----------------------------------------------------------------

    def _base(self) -> PCA:
        kind = self.base_class
        if self.pca is not None and not isinstance(self.pca, kind):
            name = kind.__name__
            raise InvalidInputError(
                f"pca is {in_words(self.pca)}; expected a {name} of streampca: "
                f"{type(self).__name__}({name}(3)). Another fitted model: streampca.rotate(model)"
            )
        found: PCA = kind() if self.pca is None else self.pca
        return found

    def check_types(self) -> None:
        """Those of the parameters of the PCA. Raises InvalidInputError."""
        self._base().check_types()

    whiten: bool = _of_pca("whiten")
    missing: str = _of_pca("missing")
    remove: Any = _of_pca("remove")
    missing_value: float | None = _of_pca("missing_value")
    memory_limit: int | str | None = _of_pca("memory_limit")
    scheduler: Any = _of_pca("scheduler")
    threads: int | None = _of_pca("threads")
    progress: Any = _of_pca("progress")
    checkpoint: str | None = _of_pca("checkpoint")

    def unrotated(self) -> PCA:
        """The PCA that was rotated, fitted, with its first k components."""
        model = copy.copy(self._base())
        attach(model, self._result_as(RotatedDecomposition).unrotated())
        model.dim_ = self.dim_
        return model


@overload
def rotate(
    source: Decomposition,
    method: str = "varimax",
    k: int | None = None,
    *,
    normalize: bool = True,
    power: float = 4.0,
    restarts: int = RESTARTS,
) -> RotatedDecomposition: ...
@overload
def rotate(
    source: Any,
    method: str = "varimax",
    k: int | None = None,
    *,
    normalize: bool = True,
    power: float = 4.0,
    restarts: int = RESTARTS,
) -> RotatedPCA: ...
def rotate(
    source: Any,
    method: str = "varimax",
    k: int | None = None,
    *,
    normalize: bool = True,
    power: float = 4.0,
    restarts: int = RESTARTS,
) -> Any:
    """Rotate a fitted model or result towards simple structure; no data are read.

    source : a fitted PCA (or another estimator of ours), which gives a fitted
        :class:`RotatedPCA`; or a Decomposition, which gives a :class:`RotatedDecomposition`; or a
        model of two views or its result, which gives one of its own kind (also:
        ``MCA(5, rotation="varimax")``).
    method : "varimax", "quartimax", or "promax" (factors may correlate).
    k : how many leading components to rotate; None = all that vary. The answer depends on it.
    normalize : Kaiser's row normalisation: features count the same, however much they share.
    power : of promax's target.

    restarts : random rotations to begin with, beside the unrotated loadings. The criterion may have
        several optima; the best one is kept, and the result counts them (``optima``, ``reached``
        and ``starts``). 0 takes the one that the unrotated loadings lead to.

    Starts are the same each time: the same input gives the same answer. Components are ordered by
    the variance that they explain, and have the sign rule of all components.
    Cost: see ``solvers.rotation.best_varimax``; restarts look at 2,048 features at most.
    Raises InvalidInputError. Warns (AccuracyWarning) where the iteration does not converge.
    Source: Kaiser 1958, Psychometrika 23; Hendrickson and White 1964, Br. J. Stat. Psych. 17.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, rotate
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> rotate(PCA(2).fit(X), "promax").result_.correlations.shape
    (2, 2)
    """
    options: dict[str, Any] = {"normalize": normalize, "power": power, "restarts": restarts}
    if hasattr(source, "rotate"):  # a result, or a model of two views
        return source.rotate(method, k, **options)
    result = decomposition_of(source, "streampca.rotate(pca.fit(X))", complex_values=True)
    kind: Any = opened_as(result.rotated_as[0])
    base, given = kind.base_class, source.get_params()
    pca = base(**{name: value for name, value in given.items() if name in base.parameters})
    model = kind(pca, method, k, **options)
    attach(model, model._rotated(result))
    model.dim_ = getattr(source, "dim_", None)
    return model
