"""How sure the sample makes components: errors and intervals, and their pictures in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri
from scipy.stats import chi2

from streampca.errors import InvalidInputError
from streampca.html import card, preformatted
from streampca.kernels import Array, reciprocal
from streampca.models.results.decomposition import PrincipalComponents
from streampca.solvers.noise_edge import noise_p_values

LEGEND = (
    "Intervals and angle (degrees) are of the sample; +- and angle <= bound the errors of the\n"
    "computation. TW and parallel: probabilities that noise of independent rows has as much\n"
    "variance, by Tracy and Widom (of scaled features) and by parallel analysis.\n"
    "-: not determined."
)
INTERVALS = ("studentized", "percentile", "bca")


@dataclass(frozen=True)
class Estimates:
    """Positive numbers, one for each component, and how they vary between samples.

    values, errors : (k,) and their standard errors.
    replicates : (R, k) the same of resamples; None where errors come from a formula.
    log_error, log_errors : (k,) and (R, k) standard errors of the logarithms within the sample and
        within each resample (delta method).  acceleration : (k,) of BCa intervals.
    shares : whether they are shares, at most 1.
    left_out : (k,) variance of the logarithms that directions without scores add.
    """

    values: Array
    errors: Array
    shares: bool = False
    replicates: Array | None = None
    log_error: Any = None
    log_errors: Any = None
    acceleration: Any = None
    left_out: Any = 0.0

    def interval(self, level: float = 0.95, kind: str | None = None) -> Array:
        """(k, 2) ends of intervals that hold the value of the population at this level.

        kind : of a bootstrap. "studentized" (None), on the scale of the logarithm (shares: of the
            logit), is the most accurate; "percentile"; "bca", which corrects bias and acceleration.
            Errors of a formula or a jackknife give a normal interval on that scale.
        Raises InvalidInputError.
        Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", sections 12.5, 13.3
        and 14.3.
        """
        z = _deviations(level)
        if kind is not None and (kind not in INTERVALS or self.replicates is None):
            known = "None without a bootstrap" if self.replicates is None else f"one of {INTERVALS}"
            raise InvalidInputError(f"kind={kind!r}; expected {known}")
        centre, slope = self._link(self.values), self._slope(self.values)
        if self.replicates is None:
            ends = np.array([[-z], [z]]) * self.errors * reciprocal(self.values) * slope
        elif kind in (None, "studentized"):
            ends = self._studentized(z, centre) * self.log_error * slope
        else:
            low, high = self._tails(z) if kind == "bca" else (ndtr(-z), ndtr(z))
            ends = _quantiles(self._link(self.replicates), low, high) - centre
        if np.any(self.left_out):
            ends = np.sign([[-1.0], [1.0]]) * np.hypot(ends, z * np.sqrt(self.left_out) * slope)
        found = centre + ends
        return np.asarray((expit if self.shares else np.exp)(found).T)

    def _studentized(self, z: float, centre: Array) -> Array:
        """(2, k) quantiles by which the errors are multiplied."""
        assert self.replicates is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self.log_errors * self._slope(self.replicates)
            t = (self._link(self.replicates) - centre) / error
        t = np.where(np.isfinite(t), t, np.sign(self.replicates - self.values) * 1e9)
        return -_quantiles(t, ndtr(z), ndtr(-z))

    def _tails(self, z: float) -> tuple[Array, Array]:
        assert self.replicates is not None
        number = len(self.replicates)
        below = np.count_nonzero(self.replicates < self.values, axis=0) / number
        bias = ndtri(np.clip(below, 1.0 / number, 1.0 - 1.0 / number))
        low, high = (
            ndtr(bias + (bias + end) / (1.0 - self.acceleration * (bias + end))) for end in (-z, z)
        )
        return low, high

    def _link(self, values: Array) -> Array:
        least = np.finfo(np.float64).tiny
        if self.shares:
            return np.asarray(logit(np.clip(values, least, 1.0 - 1e-15)))
        return np.log(np.maximum(values, least))

    def _slope(self, values: Array) -> Array:
        """Of the link, on the scale of the logarithm."""
        return (
            1.0 / (1.0 - np.minimum(values, 1.0 - 1e-15)) if self.shares else np.ones_like(values)
        )


def _quantiles(values: Array, low: Any, high: Any) -> Array:
    """(2, k) of the columns of values (R, k).  low, high : numbers, or one for each column."""
    ends = np.broadcast_to(low, values.shape[1:]), np.broadcast_to(high, values.shape[1:])
    found = [[np.quantile(c, q) for c, q in zip(values.T, end, strict=True)] for end in ends]
    return np.array(found)


def _deviations(level: float) -> float:
    """Of a normal distribution, which hold the share ``level``. Raises InvalidInputError."""
    if not 0.0 < level < 1.0:
        raise InvalidInputError(f"level={level!r}; expected a share such as 0.95")
    return float(ndtri(0.5 + 0.5 * level))


@dataclass(frozen=True)
class LeftOut:
    """Directions of which no scores are known, and how far components turn towards them.

    variance : of all of them.  largest : at most that of one.  squares : at most the sum of the
    squares of their variances.  total : variance, with that of all components.
    variances : (k,) of the components.  independent : (k,) rows that would turn each of them as
    much, if they were normal and independent.
    """

    variance: float
    largest: float
    squares: float
    total: float
    variances: Array
    independent: Array

    @classmethod
    def of(cls, result: PrincipalComponents, r: int, independent: Array) -> LeftOut:
        """Of a result, beyond its first r components."""
        values = result.explained_variance[:r]
        total = float(result.total_variance) or 1.0
        of_kept = total, values[: len(independent)], independent
        if result.rank_is_exact and result.rank <= r:
            return cls(0.0, 0.0, 0.0, *of_kept)
        rest = max(total - float(np.sum(values)), 0.0)
        largest = float(values[-1])
        if result.spectrum is not None and len(result.spectrum) > r:
            largest = float(result.spectrum[r])
        elif result.certificate is not None:
            largest -= float(result.certificate.gap[r - 1])
        largest = min(max(largest, 0.0), rest)
        squares = result.total_squares - float(np.sum(values**2))
        return cls(rest, largest, squares if squares >= 0 else largest * rest, *of_kept)

    def tilts(self, into: Any, chosen: Any = slice(None)) -> Array:
        """(k,) or (k, p) variance of the part of components that lies in directions left out.

        into : the variance of these directions, or (p,) that of each feature in them.
        chosen : some of the components.
        Source: Anderson 1963, "Asymptotic theory for principal component analysis", Ann. Math.
        Stat. 34, 122, section 2: the sum over m of l_i l_m / (n (l_i - l_m)^2), each gap at least
        that to the largest.
        """
        factors = self.variances / self._gaps**2 / self.independent * (self.variance > 0)
        return np.asarray(np.multiply.outer(factors[chosen], into))

    @property
    def shifts(self) -> Array:
        """(k,) by how much more than here variances of refitted resamples rise, to first order."""
        coupling = self.variances * self.variance / self.independent
        return np.minimum(coupling / self._gaps, np.sqrt(coupling))

    @property
    def of_shares(self) -> Array:
        """(k,) variance that they add to the logarithms of shares: of a sum of variances of normal
        rows it is 2 sum l^2 / n."""
        return 2.0 * self.squares / self.total**2 / self.independent

    @property
    def _gaps(self) -> Array:
        return np.maximum(self.variances - self.largest, 1e-6 * self.variances)


@dataclass(frozen=True, repr=False)
class SampleCertainty:
    """What :func:`bootstrap`, :func:`jackknife` and :func:`sampling_errors` return.

    It says how far components of another sample of the same population would lie from these.
    The certificate of the model bounds the errors of the arithmetic; :meth:`table` shows both.

    result : of the fit, whose components and variances these are.
    method : "bootstrap", "jackknife" or "asymptotic".  drawn : what was resampled, in words.
    variances, shares : :class:`Estimates` of the k components.
    cosines : (R, k) of the angles between components of resamples and those of the sample; None
        without a bootstrap.  span_cosines : (R,) of the largest angle between their spans.
    deviations : (R, k, r), sums of whose products are covariances of components in terms of the r
        components of the sample.  score_deviations : (R, k, r + 1) of what makes scores of these
        components from (scores of the sample, 1).
    scores : (n, r) of the rows that were resampled; None from a formula.
    left_out : what the model has no scores of, which enters by a bound.
    by_features : whether features were left out: then angles are those of unit scores, (n,).
    rescaled : whether each resample was divided by its own standard deviations.
    axes : (r, p) what ``deviations`` are in terms of, where these are not components of the model.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, bootstrap
    >>> X = np.random.default_rng(0).normal(size=(100, 6)) * [4, 3, 3, 1, 1, 1]
    >>> sure = bootstrap(PCA(6).fit(X), X, n_resamples=200, n_components=2)
    >>> sure
    <SampleCertainty: bootstrap, 200 resamples of 100 rows; exact>
    >>> sure.variances.interval().shape, sure.component_errors().shape
    ((2, 2), (2, 6))
    >>> low, high = sure.variances.interval()[0]
    >>> bool(low < 16 < high)
    True
    """

    result: PrincipalComponents
    method: str
    drawn: str
    variances: Estimates
    shares: Estimates
    deviations: Array
    score_deviations: Array
    left_out: LeftOut
    cosines: Array | None = None
    span_cosines: Array | None = None
    scores: Array | None = None
    by_features: bool = False
    rescaled: bool = False
    axes: Array | None = None

    @property
    def n_components(self) -> int:
        """k."""
        return len(self.variances.values)

    @property
    def exact(self) -> bool:
        """Whether nothing is neglected: each is what a refit gives, divisors and all."""
        return self.left_out.variance <= 0 and not self._stays

    @property
    def _stays(self) -> list[str]:
        """Parameters of steps that a refit would do anew; features are scaled one by one."""
        scaled = self.result.standardised and not (self.rescaled or self.by_features)
        missing, lost = self.result.missing, self.result.dropped
        holes = missing is not None and bool(np.delete(missing, lost).any())
        filled = holes and self.scores is not None and not self.by_features
        return ["scale"] * scaled + ["remove"] * self.result.removes + ["missing"] * filled

    def angles(self, level: float = 0.95) -> Array:
        """(k,) radians; the component of the population is within this angle, at this level.

        pi/2 where the sample does not determine the direction. By quantiles of a bootstrap, else
        of the sum of squares of normal deviations (Satterthwaite's approximation).
        """
        _deviations(level)
        if self.cosines is not None:
            square = 1.0 - np.quantile(self.cosines, 1.0 - level, axis=0) ** 2
        else:
            covariances = np.einsum("bki,bkj->kij", *[self.deviations] * 2)
            traces = np.einsum("kii->k", covariances)
            squares = np.einsum("kij,kij->k", covariances, covariances) * reciprocal(traces)
            freedom = np.maximum(traces * reciprocal(squares), 1.0)
            square = squares * chi2.ppf(level, freedom)
        square = square + self.left_out.tilts(self.left_out.variance)
        return np.arcsin(np.sqrt(np.clip(square, 0.0, 1.0)))

    def span_angle(self, level: float = 0.95) -> float:
        """The largest angle between the span of the k components and that of the population.

        Raises InvalidInputError without a bootstrap.
        """
        _deviations(level)
        if self.span_cosines is None:
            raise InvalidInputError("span_angle() needs streampca.bootstrap(model)")
        square = 1.0 - float(np.quantile(self.span_cosines, 1.0 - level)) ** 2
        tilts = self.left_out.tilts(self.left_out.variance)
        return float(np.arcsin(np.sqrt(np.clip(square + tilts.sum(), 0.0, 1.0))))

    @property
    def noise(self) -> tuple[Array, Array]:
        """(k,) twice: probabilities that noise alone has variances as large, for independent rows.

        By the test of Tracy and Widom of what the components before leave, NaN where features were
        not scaled or the sum of squared variances is not known; and by parallel analysis, for
        features as variable as these. Cost: no read; 2 ms a component.
        Source: :func:`streampca.solvers.tracy_widom_test`,
        :func:`streampca.solvers.noise_edge.noise_p_values`.
        """
        result, k = self.result, self.n_components
        unknown = np.full(k, np.nan)
        of_rest, parallel = unknown, unknown
        if result.standardised and np.isfinite(result.total_squares):
            with suppress(InvalidInputError):  # fewer than ten variances
                of_rest = result.tracy_widom().p_value[:k]
        if result.feature_variance is not None and result.feature_mean is None:
            variances = np.asarray(result.feature_variance, dtype=np.float64)
            if result.divisors is not None:
                variances = variances * reciprocal(np.asarray(result.divisors)) ** 2
            freedom = result.weight - 1.0
            parallel = noise_p_values(self.variances.values, variances, freedom)
        return of_rest, parallel

    def component_errors(self, components: Sequence[int] | None = None) -> Array:
        """(k, p) standard errors of the entries of components (unit vectors).

        components : some of them (0 = the first); None: all.

        Times the root of the variance they are those of loadings. Directions without scores add
        a bound to each entry, by the variance of its feature in them.
        Cost: k r^2 p flops, r p memory: resamples are rotations of the r components.
        Raises InvalidInputError where the fit has no components.
        """
        if self.by_features:
            raise InvalidInputError(
                "a jackknife over features says nothing of components; leave rows out: "
                "streampca.jackknife(model, X)"
            )
        r = self.deviations.shape[2]
        chosen = np.arange(self.n_components) if components is None else np.asarray(components)
        axes = self.axes
        if axes is None:
            axes = np.asarray(self.result.require_components()[:r], dtype=np.float64)
        squares = np.empty((len(chosen), axes.shape[1]))
        for i, one in enumerate(chosen.tolist()):
            turned = _covariance(self.deviations[:, one]) @ axes
            squares[i] = np.einsum("rp,rp->p", turned, axes)
        if self.left_out.variance > 0:
            of_features = self._left_of_features(axes)
            squares += self.left_out.tilts(of_features, chosen)
        return np.sqrt(np.clip(squares, 0.0, 1.0))

    def _left_of_features(self, components: Array) -> Array:
        """(p,) variance of each feature in the directions left out; at most all of it."""
        result = self.result
        if result.feature_variance is None:
            return np.full(components.shape[1], self.left_out.variance)
        known = np.array(result.feature_variance, dtype=np.float64)
        if result.feature_mean is not None:  # squares about 0
            known += np.asarray(result.feature_mean) ** 2
        if result.divisors is not None:
            known *= reciprocal(result.divisors) ** 2
        held = result.explained_variance[: len(components)] @ components**2
        return np.asarray(np.maximum(known - held, 0.0))

    def score_covariances(self, components: Sequence[int]) -> Array:
        """(n, c, c) covariances of the scores of each row on some components (0 = the first).

        They say how far the point of a row moves when the components and the mean come from
        another sample.
        Cost: n r^2 c^2 flops. Raises InvalidInputError where the method has no scores.
        """
        if self.scores is None:
            raise InvalidInputError(
                f"method {self.method!r} has no scores of rows; streampca.bootstrap(model, X) has"
            )
        rows = np.column_stack([self.scores, np.ones(len(self.scores))])
        found = np.empty((len(rows), len(components), len(components)))
        for i, one in enumerate(components):
            for j, other in enumerate(components):
                cross = _covariance(*(self.score_deviations[:, which] for which in (one, other)))
                found[:, i, j] = np.einsum("nr,nr->n", rows @ cross, rows)
        tilts = self.left_out.tilts(self.left_out.squares)
        for i, one in enumerate(components):  # of a row with the usual scores in what is left out
            found[:, i, i] += tilts[one]
        return found

    # -- in words -------------------------------------------------------------------------------

    def table(self, rows: int = 10, level: float = 0.95) -> str:
        """One component a line: how sure the sample makes it, and the bounds of the arithmetic.

        level : of the intervals and of ``angle``, which are of the sample. "+-" and "angle <=" are
        of the certificate, "TW" and "parallel" :attr:`noise`. Angles are in degrees; "-" where a
        number or a direction is not determined.
        """
        certificate, shares = self.result.certificate, self.shares.interval(level)
        variances, angles = self.variances.interval(level), self.angles(level)
        size = f"{100 * level:g} % interval"
        head = f"{'component':>9} {'variance':>10} {size:>23} {'+-':>8}"
        head = f"{head} {'share':>7} {size:>19} {'angle':>7} {'angle <=':>8}"
        lines, noise = [f"{head} {'TW':>7} {'parallel':>8}"], np.transpose(self.noise)
        for i, value in enumerate(self.variances.values[:rows]):
            of_sums = [np.nan] * 2
            if certificate is not None:
                of_sums = [certificate.variance_bound[i], np.rad2deg(certificate.angle_bound[i])]
            bound, angle = (_number(one, f"8.1{kind}") for one, kind in zip(of_sums, "eg"))
            low, high = variances[i]
            lines.append(
                f"{i + 1:>9} {value:>10.5g} {low:>10.5g} to {high:>9.5g} {bound} "
                f"{self.shares.values[i]:>7.2%} {shares[i, 0]:>8.2%} to {shares[i, 1]:>7.2%} "
                f"{_number(np.rad2deg(angles[i]), '7.3g')} {angle} "
                f"{_number(noise[i, 0], '7.2g')} {_number(noise[i, 1], '8.2g')}"
            )
        if self.n_components > rows:
            lines.append(f"      ... {self.n_components - rows} more")
        return "\n".join(lines)

    def text(self, rows: int = 10, level: float = 0.95) -> str:
        """The table with what it is of, and what its numbers take as given."""
        head = f"{self.method}: {self.drawn}"
        return "\n".join([head, self.table(rows, level), "", LEGEND, *self.remarks])

    @property
    def remarks(self) -> list[str]:
        """What the numbers take as given, in sentences."""
        said = []
        if self.left_out.variance > 0:
            share = self.left_out.variance / (self.result.total_variance or 1.0)
            said.append(
                f"{share:.1%} of the variance lies in directions without scores. Components turn "
                "towards them as they do towards each other; that is in the angles and errors"
            )
            if self.method == "bootstrap":
                shift = float(self.left_out.shifts[0] / self.variances.values[0])
                said.append(
                    "Refits of the resamples would have first variances that are larger by about "
                    f"{shift:.1%}; that is not in the interval"
                )
        said += [
            f"What {name}= does stays as in the fit; a refit would do it anew"
            for name in self._stays
        ]
        return said

    def to_dict(self, level: float = 0.95) -> dict[str, Any]:
        """JSON-ready form, without what has the length of rows or features."""
        certificate = self.result.certificate
        named = (("variance", self.variances), ("share", self.shares))
        found: dict[str, Any] = {"method": self.method, "drawn": self.drawn, "exact": self.exact}
        for name, one in named:
            found |= {name: one.values.tolist(), f"{name}_error": one.errors.tolist()}
            found[f"{name}_interval"] = one.interval(level).tolist()
        return found | {
            "level": level,
            "angle": self.angles(level).tolist(),
            "noise": {
                name: [None if np.isnan(one) else one for one in each.tolist()]
                for name, each in zip(("tracy_widom", "parallel"), self.noise, strict=True)
            },
            "left_out_variance": self.left_out.variance,
            "left_out_shift": self.left_out.shifts.tolist(),
            "certificate": certificate and certificate.to_dict(),
            "remarks": self.remarks,
        }

    def __repr__(self) -> str:
        bounded = "with a bound of what has no scores" if self.left_out.variance > 0 else ""
        stays = [f"{name} as in the fit" for name in self._stays]
        known = ", ".join([bounded] * bool(bounded) + stays) or "exact"
        return f"<SampleCertainty: {self.method}, {self.drawn}; {known}>"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return card("Certainty by the sample", self.drawn, [], {"table": preformatted(self)})


def _covariance(one: Array, other: Array | None = None) -> Array:
    """Of deviations (R, r)."""
    return np.asarray(one.T @ (one if other is None else other))


def _number(value: float, form: str) -> str:
    """A number, or "-" where it is none, or a right angle."""
    width = int(form.partition(".")[0])
    unknown = not np.isfinite(value) or ("g" in form and value > 89.9)
    return f"{'-':>{width}}" if unknown else f"{value:>{form}}"
