"""What a factor analysis is asked for, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.models.latent.rows import SCORES
from streampca.models.request import check_ddof
from streampca.solvers.rotation import METHODS


@dataclass(frozen=True, kw_only=True)
class FactorRequest:
    """Parameters as :class:`streampca.FactorAnalysis` describes them.

    parameters : all of the estimator, as they are stored with the result.
    """

    n_components: int
    rotation: str | None
    normalize: bool
    power: float
    rotation_tol: float
    min_uniqueness: float
    solver: str
    tol: float
    max_passes: int
    ddof: int
    missing: str
    memory_limit: int | str | None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, p: int) -> FactorRequest:
        """That of an estimator; refuses what no data of p features can meet."""
        check_ddof(model.ddof)
        k, lower = model.n_components, model.min_uniqueness
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= p:
            raise InvalidInputError(
                f"n_components={k!r}; expected a number of factors between 1 and n_features={p}"
            )
        if isinstance(lower, bool) or not isinstance(lower, (int, float)) or not 0 < lower < 1:
            raise InvalidInputError(
                f"min_uniqueness={lower!r}; expected a share of variance between 0 and 1, as 0.005"
            )
        if model.missing not in ("raise", "mean", "em"):
            raise InvalidInputError(f"missing={model.missing!r}; expected 'raise', 'mean' or 'em'")
        if model.rotation is not None and model.rotation not in METHODS:
            raise InvalidInputError(
                f"rotation={model.rotation!r}; expected None or one of {METHODS}"
            )
        most = model.max_passes
        if isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 3:
            raise InvalidInputError(f"max_passes={most!r}; expected 3 or more")
        if not 0.0 <= model.rotation_tol < 1.0:
            raise InvalidInputError(f"rotation_tol={model.rotation_tol!r}; expected 0 or a share")
        if model.scores not in SCORES:
            raise InvalidInputError(f"scores={model.scores!r}; expected one of {SCORES}")
        return cls(
            n_components=int(k),
            rotation=model.rotation,
            normalize=model.normalize,
            power=model.power,
            rotation_tol=model.rotation_tol,
            min_uniqueness=lower,
            solver=model.solver,
            tol=model.tol,
            max_passes=int(most),
            ddof=model.ddof,
            missing=model.missing,
            memory_limit=model.memory_limit,
            parameters=model.stored_params(),
        )
