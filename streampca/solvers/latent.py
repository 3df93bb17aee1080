"""The linear Gaussian model behind probabilistic PCA and factor analysis, and its M step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array, reciprocal
from streampca.kernels.least_squares import pair_columns, posterior, unpacked_triangle

# The linear Gaussian model behind probabilistic PCA and factor analysis: x = W f + e.

LOG_2_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class FactorModel:
    """Rows z ~ N(0, W C W' + diag(noise)) with factors f ~ N(0, C).

    loadings : W (p, k).  noise : (p,) variances; 0 excludes a feature from the model.
    correlations : C (k, k) of the factors, None for the identity.

    Given the features o that a row observes, f has precision A = C^-1 + W_o'N_o^-1 W_o and mean
    A^-1 W_o'N_o^-1 z_o.
    Source: Bishop 2006, "Pattern Recognition and Machine Learning", section 12.2.
    """

    loadings: Array
    noise: Array
    correlations: Array | None = None

    @cached_property
    def inverse_noise(self) -> Array:
        """(p,) 1 / noise, 0 for features that are left out."""
        return reciprocal(self.noise)

    @cached_property
    def weighted(self) -> Array:
        """(p, k) W over the noise."""
        return np.asarray(self.loadings * self.inverse_noise[:, None])

    @cached_property
    def pairs(self) -> Array:
        """(p, k (k + 1) / 2): what each feature adds to the information of the factors, packed."""
        return pair_columns(self.loadings * np.sqrt(self.inverse_noise)[:, None])

    @cached_property
    def log_noise(self) -> Array:
        """(p,) logarithms of the noise, 0 for features that are left out."""
        return np.log(self.noise, out=np.zeros_like(self.noise), where=self.noise > 0)

    @cached_property
    def prior(self) -> Array:
        """(k, k) precision of the factors before anything is observed."""
        k = self.loadings.shape[1]
        return np.eye(k) if self.correlations is None else np.linalg.inv(self.correlations)

    @cached_property
    def information(self) -> Array:
        """(k, k) precision of the factors of a row that observes every feature."""
        return np.asarray(self.prior + self.loadings.T @ self.weighted)

    @cached_property
    def covariance_given_all(self) -> Array:
        """(k, k) covariance of the factors of a row that observes every feature."""
        zero = np.zeros((1, len(self.information)))
        return np.asarray(posterior(self.information[None], zero)[1][0])

    @cached_property
    def regression(self) -> Array:
        """(k, p) matrix from a fully observed row to the mean of its factors."""
        return np.asarray(self.covariance_given_all @ self.weighted.T)

    @cached_property
    def least_squares(self) -> Array:
        """(k, p) matrix of Bartlett's factor scores: weighted least squares without a prior."""
        plain = self.loadings.T @ self.weighted
        return np.asarray(np.linalg.pinv(plain, hermitian=True) @ self.weighted.T)

    @cached_property
    def log_determinant(self) -> float:
        """Log-determinant of the covariance of the features that are in the model."""
        inner = float(np.linalg.slogdet(self.information)[1] - np.linalg.slogdet(self.prior)[1])
        return inner + float(np.sum(self.log_noise))

    def constants(self, logdet: Array, noise: Array, seen: Array) -> Array:
        """(rows,) the part of the log-likelihood that does not depend on the values.

        logdet : (rows,) of the information.  noise : (rows,) sum of the log noise of the features
        that a row observes.  seen : (rows,) number of these features.
        """
        prior = float(np.linalg.slogdet(self.prior)[1])
        return np.asarray(-0.5 * (seen * LOG_2_PI + noise + logdet - prior))

    def covariance(self) -> Array:
        """(p, p) W C W' + diag(noise)."""
        w = self.loadings
        explained = (w if self.correlations is None else w @ self.correlations) @ w.T
        explained[np.diag_indices_from(explained)] += self.noise
        return np.asarray(explained)

    def precision(self) -> Array:
        """(p, p) inverse of ``covariance``, by the identity of Woodbury; 0 for what is left out.

        Raises InvalidInputError where the noise is 0 in comparison with the factors.
        """
        largest = float(np.max(np.sum(self.loadings**2, axis=1) + self.noise, initial=0.0))
        used = self.noise[self.noise > 0]
        if not used.size or used.min() <= np.finfo(np.float64).eps * len(self.noise) * largest:
            raise InvalidInputError(
                "the covariance of this model has no inverse: its noise variance is 0. Fit "
                "fewer components than the rank of the data"
            )
        inverse = -self.weighted @ self.covariance_given_all @ self.weighted.T
        inverse[np.diag_indices_from(inverse)] += self.inverse_noise
        return np.asarray(0.5 * (inverse + inverse.T))

    def mean_log_likelihood(self, covariance: Array) -> float:
        """Log-likelihood per row of centred rows with this (p, p) covariance."""
        weighted = self.weighted
        inside = np.sum((weighted.T @ covariance @ weighted) * self.covariance_given_all)
        distance = float(np.diagonal(covariance) @ self.inverse_noise - inside)
        used = int(np.count_nonzero(self.noise > 0))
        return -0.5 * (used * LOG_2_PI + self.log_determinant + distance)


# The M step of a linear Gaussian model, in parameters that expand the factors.

COLUMNS = 4096  # columns whose equations are solved together
HALVINGS = 100  # bisections for a multiplier: more than float64 can resolve
LEAST = 1e-300  # least noise of a column that is in the model


@dataclass(frozen=True)
class LatentState:
    """Parameters between two passes: loadings (p, k) and noise (p,) of standardised columns, and
    their centre (p,) in the units of the data. A noise of 0 excludes a column.
    """

    loadings: Array
    noise: Array
    center: Array


def expanded_step(
    sums: Any, state: LatentState, scale: Array | None, shared: bool, lower: float
) -> LatentState:
    """The M step: the most likely parameters given the sums of an E step.

    sums : a LatentEquations folded over all rows.  scale : (p,) divisors of the columns, or None.
    shared : one noise for all columns (PPCA), or one each (factor analysis).
    lower : least noise where it is shared; else the least share of a column's variance in the
    model, |w|^2 + noise, that is noise.

    The factors, which had mean 0 and variance 1, first get the mean and covariance of their
    posteriors. Then loadings, centre and noise of every column are solved for exactly. Finally the
    mean and covariance of the factors are absorbed into the centre and the loadings. No step
    lowers the likelihood, and one such step can replace hundreds of passes of plain EM.
    Cost: p k^3 flops; COLUMNS systems at a time.
    Source: Liu, Rubin and Wu 1998, "Parameter expansion to accelerate EM", Biometrika 85, section
    4.1 (PX-EM of factor analysis).
    """
    used = np.flatnonzero((state.noise > 0) & (sums.seen > 0))
    k = state.loadings.shape[1]
    share = 0.0 if shared else lower
    mean, turn = expansion(
        sums.mean, unpacked_triangle(sums.moment[None], k)[0], sums.rows, state, share
    )
    left, right = sums.equations()
    solved, noise, rest = np.zeros((len(state.noise), k + 1)), *np.zeros((2, len(state.noise)))
    for begin in range(0, len(used), COLUMNS):
        part = used[begin : begin + COLUMNS]
        solved[part], noise[part], rest[part] = solve_columns(
            left[part], right[part], sums.squares[part], turn, share
        )
    if shared:
        noise[used] = max(rest[used].sum() / sums.seen[used].sum(), lower)
    loadings = solved[:, :k]
    shift = solved[:, k] + loadings @ mean
    center = state.center + (shift if scale is None else shift * scale)
    return LatentState(loadings @ turn, noise, center)


def expansion(
    first: Array, second: Array, rows: float, state: LatentState, share: float
) -> tuple[Array, Array]:
    """(mean (k,), Cholesky factor (k, k) of the covariance) of the expanded factors.

    first, second : sums of E[f] (k,) and E[f f'] (k, k) over ``rows`` rows.
    state : parameters before the step.  share : least share of a column's variance that is noise.

    Usually the most likely covariance M. The noise of columns that have reached the least share
    cannot shrink when the covariance grows along their loadings. On the span B of these loadings
    the covariance stays the identity: M + H (I - B'MB) H' with H = MB (B'MB)^-1, the most likely
    one with that constraint.
    """
    mean = first / rows
    moment = second / rows - np.outer(mean, mean)
    covariance = moment
    if share > 0.0:
        w, room = state.loadings, state.noise * (1.0 - share) / share
        fixed = np.zeros(len(w), bool)
        beyond = (np.sum(w**2, axis=1) >= room * (1.0 - 1e-9)) & (room > 0)
        while beyond.any():  # few columns; fixing some can push others beyond the bound
            fixed |= beyond
            u, singular, _ = np.linalg.svd(w[fixed].T, full_matrices=False)
            basis = u[:, singular > 1e-9 * singular[0]]
            inner = basis.T @ moment @ basis
            h = moment @ basis @ np.linalg.inv(inner)
            covariance = moment + h @ (np.eye(len(inner)) - inner) @ h.T
            variance = np.einsum("ij,jk,ik->i", w, covariance, w)
            beyond = (variance > room * (1.0 + 1e-12)) & ~fixed
            beyond &= room > 0
    return mean, np.linalg.cholesky((covariance + covariance.T) / 2.0)


def solve_columns(
    left: Array, right: Array, squares: Array, turn: Array, share: float
) -> tuple[Array, Array, Array]:
    """(loadings and centres (c, k + 1), noise (c,), residual sums of squares (c,)).

    left, right : (c, k + 1, k + 1) and (c, k + 1) normal equations, the centre last, of columns
    with observations.  squares : (c,) sums of their squares.
    turn : (k, k) Cholesky factor of the covariance of the factors.
    share : least noise over |turn'w|^2 + noise. Where the equations give less, the likelihood is
    largest at that share.
    """
    solved = np.linalg.solve(left, right[:, :, None])[:, :, 0]
    rest = np.maximum(squares - np.einsum("ij,ij->i", solved, right), 0.0)
    noise = np.maximum(rest / left[:, -1, -1], LEAST)
    if share > 0.0:
        reach = np.sum((solved[:, :-1] @ turn) ** 2, axis=1) * share / (1.0 - share)
        held = np.flatnonzero(noise < reach)
        if held.size:
            solved[held], noise[held] = _at_the_bound(
                left[held], right[held], squares[held], turn, share
            )
    return solved, noise, rest


def _at_the_bound(
    left: Array, right: Array, squares: Array, turn: Array, share: float
) -> tuple[Array, Array]:
    """Loadings, centres and noise of columns whose noise is that share of their variance.

    With the centre eliminated and u = turn'w, each column minimises seen log(noise) +
    (q - 2 u'd + u'A u) / noise subject to noise >= a u'u, where a = share / (1 - share).
    With a multiplier m the loadings are (A + m I)^-1 d, and m = a (seen - rest / noise). The right
    side falls as m grows from 0 to a seen, so bisection finds the one root.
    """
    a, k = share / (1.0 - share), len(turn)
    seen, first = left[:, k, k], left[:, :k, k]
    inverse = np.linalg.inv(turn)
    matrix = left[:, :k, :k] - first[:, :, None] * first[:, None, :] / seen[:, None, None]
    values, vectors = np.linalg.eigh(inverse @ matrix @ inverse.T)
    d = right[:, :k] - first * (right[:, k] / seen)[:, None]
    d = np.einsum("cij,ci->cj", vectors, d @ inverse.T)
    total = squares - right[:, k] ** 2 / seen
    low, high = np.zeros_like(seen), a * seen
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        u = d / (values + middle[:, None])
        noise = np.maximum(a * np.sum(u**2, axis=1), LEAST)
        left_over = total + np.sum(u * (values * u - 2.0 * d), axis=1)
        more = a * (seen - left_over / noise) > middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    solved = np.empty_like(right)
    solved[:, :k] = np.einsum("cij,cj->ci", vectors, u) @ inverse
    solved[:, k] = (right[:, k] - np.einsum("ij,ij->i", first, solved[:, :k])) / seen
    return solved, noise
