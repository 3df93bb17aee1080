"""Regression on principal components, for every number of them, with held-out errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.accumulators import FoldScatter
from streampca.errors import InvalidInputError
from streampca.kernels import Array, symmetrize
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import whole_number
from streampca.models.regression.regression import Regression, refuse_columns_of_holes
from streampca.passes import PassResult, PassSpec, pass_spec

FOLDS = 5


@estimator
class PrincipalComponentRegression(Regression):
    """Linear regression on the leading principal components of X, for every number of them.

    Attributes
    ----------
    coef_, intercept_ with n_components_used_ of them; all_coef_ (k, p) of 1, 2, ..., k;
    held_out_error_ (h + 1,) mean squared error on rows that were held out, of 0, 1, ..., h, as
    many as remain without them, at most k;
    shrinkage_ (k,): length of the coefficients over that of ordinary least squares; plan_, cost_.

    Cost: one read of both, n (p + q)^2 flops; (p + q)^2 memory for each of five folds,
    and p^2 q for the coefficients.
    Raises InvalidInputError, MemoryLimitError, NonFiniteError (holes).
    Source: Jolliffe 2002, "Principal Component Analysis", 2nd ed., section 8.1.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PrincipalComponentRegression
    >>> rng = np.random.default_rng(0)
    >>> size = rng.standard_normal(200)
    >>> X = np.column_stack([size, size]) + 0.1 * rng.standard_normal((200, 2))
    >>> model = PrincipalComponentRegression(1).fit(X, 2 * size)
    >>> model.coef_.round(1)  # shared by columns that tell the same
    array([1., 1.])
    """

    n_components: int | str = parameter(
        default="cv",
        kw_only=False,
        counts_components=True,
        meaning="""k, a number, or "cv": the one of the least held-out error.""",
    )

    def _specs(self, joint: ChunkedMatrix, p: int) -> tuple[PassSpec, dict[str, int]]:
        n, m = joint.shape
        k = self.n_components
        if k != "cv":
            whole_number("n_components", k, 1, p, beside="'cv' or ", why=", that of the features")
        sums = {f"fold {i}": FoldScatter(fold=i, folds=FOLDS) for i in range(FOLDS)}
        spec = pass_spec("scatter", joint, 0, sums, flops=float(n) * m * m)
        return spec, {
            "sums of all folds, and their eigenvectors": 10 * m * m * 8,
            "coefficients of each number": 2 * p * p * (m - p) * 8,
        }

    def _solved(self, done: PassResult, p: int) -> dict[str, Any]:
        parts = [done[f"fold {i}"] for i in range(FOLDS)]
        whole, errors, count = _joined(parts), np.zeros(p + 1), 0.0
        refuse_columns_of_holes(whole, p)
        limit = int(min(p, whole.count - max(part.count for part in parts) - 1))
        if limit < 1:
            raise InvalidInputError(
                f"n_samples={whole.count} are too few to hold some out; expected more samples"
            )
        for part in parts:
            if not part.count:
                continue
            rest = _joined([one for one in parts if one is not part])
            paths = _paths(rest, p, limit)
            found = _squared_errors(part, rest, paths, p)
            shorter = min(len(found), len(errors)) if count else len(found)
            errors, count = errors[:shorter] + found[:shorter], count + part.weight
        held_out = errors / count
        paths = _paths(whole, p, p)
        k = int(np.argmin(held_out) if self.n_components == "cv" else self.n_components)
        k = max(k, 1)
        if k > len(paths):
            raise InvalidInputError(f"n_components={k}; X has {len(paths)} above rounding")
        mean = np.asarray(whole.mean)
        return {
            "coef": paths[k - 1],
            "ols_coef": paths[-1],
            "mean": mean[:p],
            "response_mean": mean[p:],
            "all_coef": paths.reshape(len(paths), -1),
            "held_out": held_out,
            "n_used": k,
            "freedom": float(max(whole.weight - 1 - k, 1.0)),
        }

    @property
    def n_components_used_(self) -> int:
        """How many ``coef_`` is of."""
        return self.result_.n_used

    @property
    def all_coef_(self) -> Array:
        """(k, p) of 1, 2, ... components, or (k, p, q)."""
        result = self.result_
        assert result.all_coef is not None
        shape = (len(result.all_coef), *result.coef.shape)
        found = result.all_coef.reshape(shape)
        return found[:, :, 0] if shape[2] == 1 else found

    @property
    def held_out_error_(self) -> Array:
        """(h + 1,) mean squared error of held-out rows, of 0, 1, ... components."""
        assert self.result_.held_out is not None
        return self.result_.held_out

    @property
    def shrinkage_(self) -> Array:
        """(k,) Euclidean length of the coefficients over that of all components."""
        lengths = np.linalg.norm(self.all_coef_.reshape(len(self.all_coef_), -1), axis=1)
        return np.asarray(lengths / (lengths[-1] or 1.0))


def _joined(parts: list[FoldScatter]) -> Any:
    whole = FoldScatter()
    for part in parts:
        whole.merge(part)
    return whole


def _paths(sums: Any, p: int, limit: int) -> Array:
    """(k, p, q) coefficients of 1, 2, ... components, as far as variances stand above rounding."""
    scatter = symmetrize(np.array(sums.lower()))
    values, vectors = np.linalg.eigh(scatter[:p, :p])
    values, vectors = values[::-1], vectors[:, ::-1]
    count = min(limit, int(np.count_nonzero(values > p * 1e-15 * values[0])))
    if not count:
        raise InvalidInputError("X does not vary: there is nothing to regress on")
    v = vectors[:, :count]
    steps = (v.T @ scatter[:p, p:]) / values[:count, None]
    paths = v.T[:, :, None] * steps[:, None, :]
    return np.asarray(np.cumsum(paths, axis=0, out=paths))


def _squared_errors(part: Any, rest: Any, paths: Array, p: int) -> Array:
    """(k + 1,) summed squared errors of the rows of a fold, of 0, 1, ... components."""
    scatter = symmetrize(np.array(part.lower()))
    apart = np.asarray(part.mean) - np.asarray(rest.mean)
    moments = scatter + part.weight * np.outer(apart, apart)
    none = np.trace(moments[p:, p:])
    found = [none]
    for coef in paths:
        cross = float(np.sum(coef * moments[:p, p:]))
        inner = float(np.sum((moments[:p, :p] @ coef) * coef))
        found.append(none - 2.0 * cross + inner)
    return np.array(found)
