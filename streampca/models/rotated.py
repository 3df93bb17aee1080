"""A rotated decomposition: the same space, other axes in it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from streampca.errors import AccuracyWarning, InvalidInputError
from streampca.kernels import Array
from streampca.models.decomposition import Decomposition
from streampca.passes import single_threaded_blas
from streampca.solvers import TracyWidom, rotate_loadings, signs_of_components


def _empty() -> Array:
    return np.zeros((0, 0))


@dataclass(frozen=True, repr=False)
class RotatedDecomposition(Decomposition, kind="rotated model"):
    """Loadings turned by varimax or promax; ``method`` says by which.

    loadings : (p, k) rotated; the unrotated ones times ``rotation``.
    components : (k, p) their columns with length 1, which are not orthogonal.
    explained_variance : (k,) squared lengths of the columns, descending. For varimax they add up
        to the variance of the unrotated components; those of promax overlap, and do not.
    scores : (n, k) with these variances, so that scores @ components is the same reconstruction.
    rotation : (k, k), orthogonal for varimax.
    correlations : (k, k) of the scores (phi), the identity for varimax.
    base_variance : (k,) of the unrotated components.
    sweeps, converged : of the varimax iteration.
    """

    rotation: Array = field(default_factory=_empty)
    correlations: Array = field(default_factory=_empty)
    base_variance: Array = field(default_factory=lambda: np.zeros(0))
    base_method: str = ""
    sweeps: int = 0
    converged: bool = True

    documented: ClassVar[tuple[str, ...]] = (
        *Decomposition.documented,
        "base_method",
        "sweeps",
        "converged",
    )

    def permuted_parts(self, order: Array, sign: Array) -> dict[str, Any]:
        """The rotation and the correlations of components that change places or signs."""
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
    ) -> RotatedDecomposition:
        """The first k components of a fitted result, rotated; see ``streampca.rotate``."""
        k = _checked_count(result, k)
        deviation = np.sqrt(result.explained_variance[:k])
        base = result.require_components()[:k]
        with single_threaded_blas():
            found = rotate_loadings(base.T * deviation, method, normalize=normalize, power=power)
            lengths = np.linalg.norm(found.loadings, axis=0)
            order = np.argsort(-lengths, kind="stable")
            unit = found.loadings[:, order] / lengths[order]
            signs = signs_of_components(unit)
            turn = found.matrix[:, order] * signs
            inverse = np.linalg.inv(turn)
            scores = None
            if result.scores is not None:
                scores = (result.scores[:, :k] / deviation) @ inverse.T * lengths[order]
        if not found.converged:
            warnings.warn(
                f"the rotation has not converged after {found.sweeps} sweeps (last turn "
                f"{found.angle:.1e} radians): the criterion is flat. Rotate another number of "
                "components: k=...",
                AccuracyWarning,
                stacklevel=3,
            )
        kept = {one.name: getattr(result, one.name) for one in fields(Decomposition)}
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
            correlations=inverse @ inverse.T,
            base_variance=np.array(result.explained_variance[:k]),
            base_method=result.method,
            sweeps=found.sweeps,
            converged=found.converged,
        )

    def unrotated(self) -> Decomposition:
        """The decomposition that was rotated: its first k components."""
        lengths, deviation = np.sqrt(self.explained_variance), np.sqrt(self.base_variance)
        back = np.linalg.inv(self.rotation).T * lengths / deviation[:, None]
        kept = {one.name: getattr(self, one.name) for one in fields(Decomposition)}
        kept |= {
            "method": self.base_method,
            "components": back @ self.require_components(),
            "explained_variance": self.base_variance,
        }
        if self.scores is not None:
            kept["scores"] = (self.scores / lengths) @ self.rotation.T * deviation
        return Decomposition(**kept)

    @property
    def projectors(self) -> Array:
        """(k, p) what makes scores of standardised rows."""
        deviation = np.sqrt(self.base_variance)
        inverse = np.linalg.inv(self.rotation) * np.sqrt(self.explained_variance)[:, None]
        return np.asarray((inverse / deviation) @ self.unrotated().require_components())

    @property
    def structure(self) -> Array:
        """(p, k) covariance of features with scores of unit variance: loadings @ phi."""
        return self.loadings @ self.correlations

    @property
    def noise_variance(self) -> float:
        """That of the unrotated components: the space is the same."""
        kept = float(np.sum(self.base_variance))
        left = min(self.n_samples or self.n_dimensions, self.n_dimensions) - self.n_components
        return max(float(self.total_variance) - kept, 0.0) / left if left > 0 else 0.0

    def tracy_widom(self) -> TracyWidom:
        """Not for rotated components."""
        raise InvalidInputError(
            "significance is that of unrotated components: result.unrotated().tracy_widom()"
        )


def _checked_count(result: Decomposition, k: int | None) -> int:
    """How many components are rotated; None: all that vary. Raises InvalidInputError."""
    if isinstance(result, RotatedDecomposition):
        raise InvalidInputError("this result is rotated already; rotate result.unrotated()")
    values = result.explained_variance
    vary = int(np.count_nonzero(values > np.finfo(np.float64).eps * values.max(initial=0.0)))
    vary = min(vary, result.rank)  # those after it are rounding, of either sign
    count = vary if k is None else k
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
        raise InvalidInputError(f"k={k!r}; expected a number of components")
    if vary and not 1 <= count <= result.n_components:
        raise InvalidInputError(
            f"k={count}; the result has {result.n_components} components. Fit more of them, or "
            "rotate fewer"
        )
    if not 1 <= count <= vary:
        raise InvalidInputError(
            f"component {vary + 1} has no variance and cannot be rotated; expected k={vary}"
        )
    return int(count)
