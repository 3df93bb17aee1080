"""A fitted linear Gaussian model: what probabilistic PCA and factor analysis have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from streampca.kernels import Array
from streampca.models.decomposition import Decomposition
from streampca.solvers import FactorModel


@dataclass(frozen=True, repr=False)
class LatentDecomposition(Decomposition):
    """x = mean + scale * (W f + e) with Gaussian factors f and noise e.

    log_likelihood : of the rows of the fit, in the units of the data; NaN where their number is
        not known.
    """

    log_likelihood: float = float("nan")

    documented: ClassVar[tuple[str, ...]] = (*Decomposition.documented, "log_likelihood")

    @cached_property
    def factor_model(self) -> FactorModel:
        """W, the noise and the correlations of the factors, of standardised features."""
        return self._factor_model()

    @abstractmethod
    def _factor_model(self) -> FactorModel:
        """What ``factor_model`` keeps."""

    @property
    @abstractmethod
    def n_parameters(self) -> int:
        """Free parameters, the means among them."""

    @property
    def factor_scale(self) -> Array:
        """(k,) standard deviation of the scores when nothing was observed yet."""
        return np.ones(self.n_components)

    @property
    def directions(self) -> Array:
        """(k, p) whose rows times ``factor_scale`` are W'."""
        return self.factor_model.loadings.T

    @property
    def log_jacobian(self) -> float:
        """What turns the log-likelihood of a standardised row into that of a row of the data."""
        divisors = self.divisors
        return 0.0 if divisors is None else -float(np.sum(np.log(divisors[divisors > 0])))

    @property
    def aic(self) -> float:
        """Akaike's criterion: -2 log-likelihood + 2 parameters. Smaller is better."""
        return -2.0 * self.log_likelihood + 2.0 * self.n_parameters

    @property
    def bic(self) -> float:
        """Schwarz's criterion: -2 log-likelihood + log(n) parameters. Smaller is better."""
        return -2.0 * self.log_likelihood + float(np.log(self.weight)) * self.n_parameters
