"""Rows watched by a fitted PCA: T^2, prediction errors, their limits, and what features add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.matrix.labels import plain
from streampca.matrix.select import select
from streampca.models.contract.linear import decomposition_of, in_words
from streampca.models.explore.row_distances import COLUMNS, FeatureShares, RowDistances
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.row_maps import RowPasses
from streampca.solvers.control_limits import (
    FittedSpectrum,
    order_statistic,
    rest_of_moments,
    stand_ins,
)

NEW, FIT = "new", "fit"
AUTO, NORMAL, EMPIRICAL = "auto", "normal", "empirical"
ENOUGH = 10.0  # rows of the fit expected beyond an empirical limit that "auto" takes
T2, SPE = "t2", "spe"
MANY = 1e9  # rows of a fit to a covariance alone
NOTHING_LEFT = 1e-12  # share of the variance below which the components leave rounding


@dataclass(frozen=True)
class Limit:
    """A limit of one statistic.

    value : that a row in control exceeds with probability alpha.  method : how it was computed.
    others : the same by other methods, by name, for comparison.
    """

    value: float
    method: str
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contributions:
    """What each feature adds to the statistics of one row.

    t2 : (p,) adds up to T^2; negative where a feature is nearer to the mean than the others let
        expect.  spe : (p,) squared residuals, which add up to SPE.  NaN where the cell is missing:
        what the values add that T^2 expects there is of no feature.
    """

    t2: Array
    spe: Array
    features: AxisLabels

    def top(self, n: int = 5, statistic: str = SPE) -> list[tuple[str, float]]:
        """The n features that add most to "spe" or "t2", by name, the largest first."""
        values = np.nan_to_num(self.spe if statistic == SPE else self.t2)
        order = np.argsort(-values, kind="stable")[:n]
        return list(zip(self.features.names(order.tolist()), values[order].tolist(), strict=True))


@dataclass(frozen=True, repr=False)
class Monitor:
    """What :func:`monitor` returns.

    t2, spe : (n,) Hotelling's T^2 and the squared prediction error; NaN in a row without a cell.
    missing : (n,) missing cells.  limits : of "t2" and "spe".
    alpha : the probability by which each was chosen.  rows : "new" or "fit".
    passes, distances : the rows, to be read again, and the map that was applied.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, monitor
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [4, 4, 1, 1, 1, 1, 1, 1]
    >>> seen = monitor(PCA(2).fit(X), X, rows="fit")
    >>> seen.limits["t2"].method, round(seen.limits["t2"].value, 2)
    ('beta', 9.14)
    >>> seen.alarms.shape, int(seen.alarms[:, 0].sum())
    ((500, 2), 4)
    """

    t2: Array
    spe: Array
    missing: Array
    limits: Mapping[str, Limit]
    alpha: float
    rows: str
    passes: RowPasses
    distances: RowDistances

    @property
    def samples(self) -> AxisLabels:
        """The labels of the rows."""
        return self.passes.matrix.labels.samples

    @cached_property
    def alarms(self) -> Array:
        """(n, 2) True where T^2, and where SPE, is above its limit or not defined."""
        values = np.column_stack([self.t2, self.spe])
        return ~(values <= [self.limits[T2].value, self.limits[SPE].value])

    def outliers(self) -> Array:
        """(m,) numbers of the rows in alarm, those farthest above a limit first."""
        tiny = np.finfo(float).tiny
        far = np.maximum(
            self.t2 / max(self.limits[T2].value, tiny), self.spe / max(self.limits[SPE].value, tiny)
        )
        rows = np.flatnonzero(self.alarms.any(axis=1))
        return rows[np.argsort(-np.nan_to_num(far[rows], nan=np.inf), kind="stable")]

    def contributions(self, row: int) -> Contributions:
        """What each feature adds to T^2 and to SPE of one row. Cost: reads the row again.

        Source: :class:`~streampca.models.explore.row_distances.FeatureShares`.
        """
        return self.contributions_of([row])[0]

    def contributions_of(self, rows: Sequence[int]) -> list[Contributions]:
        """The same for several rows, by one pass over these. Memory: 16 p bytes a row."""
        if not len(rows):
            return []
        whole, wanted = self.passes.matrix, np.arange(len(self.t2))[np.asarray(rows)]
        if not len(wanted):
            return []
        numbers, places = np.unique(wanted, return_inverse=True)
        some = select(whole, samples=numbers)
        if whole.design is not None:
            some = some.without(whole.design[numbers], whole.removed)
        made = FeatureShares(self.distances)
        passes = RowPasses(some, self.passes.options, self.passes.running, self.passes.kept_nbytes)
        values = passes.mapped("contributions", made).in_memory(made.width)
        t2, spe = np.hsplit(values[places], 2)
        features = whole.labels.features
        return [Contributions(*one, features) for one in zip(t2, spe, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the values of single rows but for the ten farthest."""
        t2, spe = np.count_nonzero(self.alarms, axis=0).tolist()
        return {
            "rows": len(self.t2),
            "of": self.rows,
            "alpha": self.alpha,
            "alarms": {T2: t2, SPE: spe, "either": int(self.alarms.any(axis=1).sum())},
            "limits": {name: plain(vars(one)) for name, one in self.limits.items()},
            "rows_with_missing_cells": int(np.count_nonzero(self.missing)),
            "outliers": [
                {
                    "row": i,
                    "sample": self.samples.name(i),
                    T2: float(self.t2[i]),
                    SPE: float(self.spe[i]),
                    "alarms": [
                        name for name, on in zip((T2, SPE), self.alarms[i], strict=True) if on
                    ],
                }
                for i in self.outliers()[:10].tolist()
            ],
        }

    def __repr__(self) -> str:
        counts = np.count_nonzero(self.alarms, axis=0)
        lines = [f"{len(self.t2)} {self.rows} rows at alpha {self.alpha:g}"]
        for name, count in zip((T2, SPE), counts.tolist(), strict=True):
            one = self.limits[name]
            lines.append(
                f"{name.upper():>4} {count:>7} above {one.value:<12.6g} {count / len(self.t2):.2%}"
                f"  ({one.method})"
            )
        return "\n".join(lines)


def monitor(
    model: Any,
    X: Any,
    *,
    alpha: float = 0.01,
    rows: str = NEW,
    limits: str = AUTO,
    reference: Any = None,
    dim: Any = None,
    remove: Any = None,
) -> Monitor:
    """Hotelling's T^2 and the squared prediction error (SPE, Q) of every row, with limits.

    T^2 says how far a row is from the mean within the components, SPE how far it is from their
    span: the sum of the squared residuals of its standardised features.

    model : a fitted PCA, IncrementalPCA or GenotypePCA.  X : (n, p), as for its ``transform``.
    alpha : the share of rows in control that each limit lets through as false alarms; the two
        together about twice that.
    rows : "new", or "fit" where X holds the rows of the fit, whose statistics are smaller; those
        that the fit left out (``keep`` of GenotypePCA) are left out by their names.
    limits : "normal", for Gaussian rows: of T^2 by F (new rows) or beta (of the fit), of SPE by
        moments of the spectrum; "empirical", the quantiles of the rows of the fit, for any
        distribution; "auto" is "empirical" where ``reference`` has 10 / alpha rows or more.
    reference : the rows of the fit, another pass; or what this function returned for them. New
        rows need it for "empirical", after a fit that iterated (which does not know the squares of
        all variances), and after one without centring. Limits leave each of them out in turn, to
        first order.
    dim, remove : as for ``transform``.

    Missing cells are refused where the model refuses them; else scores of a row are those expected
    from the cells that it has, and SPE is over these, so that a row with holes is in alarm less
    often.
    Cost: one pass, 2 n p k flops in float64; 24 bytes a row. Blocks of samples do not change
    the bits. Where features are streamed (chunks that hold all samples) SPE is a difference of two
    norms, right to 4e-15 of the norm of the row.
    Raises InvalidInputError.
    Source: Jackson 1991, "A User's Guide to Principal Components", sections 1.7 and 2.7. Limits:
    :class:`streampca.solvers.control_limits.FittedSpectrum`.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, monitor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 8)) * [4, 4, 1, 1, 1, 1, 1, 1]
    >>> new = rng.normal(size=(200, 8)) * [4, 4, 1, 1, 1, 1, 1, 1]
    >>> new[7, 5] += 9
    >>> seen = monitor(PCA(2).fit(X), new)
    >>> seen.outliers()[0], seen.contributions(7).top(1)[0][0]
    (np.int64(7), 'feature 5')
    """
    result = monitored(model)
    _check(alpha, rows, limits, reference)
    if not isinstance(reference, Monitor | None):
        again = model._passes(model._matrix(reference, dim, of_fit=True))
        reference = _seen(again, RowDistances.of(result, again.options), "reference")
    known = None if reference is None else (reference.t2, reference.spe)
    if known is not None and result.n_samples and len(known[0]) != result.n_samples:
        raise InvalidInputError(
            f"reference has {len(known[0])} rows, and the fit had {result.n_samples}; expected the "
            "rows of the fit"
        )
    passes = model._passes(model._matrix(X, dim, remove, of_fit=rows == FIT))
    return watched(result, passes, alpha, rows, limits, known)


def outliers(model: Any, X: Any, alpha: float = 0.01, **options: Any) -> Array:
    """(m,) numbers of the rows that T^2 or the squared prediction error sets apart.

    The farthest first. All is as for :func:`monitor`, which says more: ``monitor(...).outliers()``.
    X : (n, p).  Cost: one pass. Raises InvalidInputError.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, outliers
    >>> X = np.random.default_rng(0).normal(size=(500, 8)) * [4, 4, 1, 1, 1, 1, 1, 1]
    >>> X[7, 5] += 9
    >>> int(outliers(PCA(2).fit(X), X, rows="fit")[0])
    7
    """
    return monitor(model, X, alpha=alpha, **options).outliers()


def watched(
    result: PrincipalComponents,
    passes: RowPasses,
    alpha: float,
    rows: str,
    limits: str = AUTO,
    known: tuple[Array, Array] | None = None,
) -> Monitor:
    """As :func:`monitor`, of opened rows.  known : T^2 and SPE of the rows of the fit, or None."""
    seen = _seen(passes, RowDistances.of(result, passes.options), "monitor")
    if rows == FIT:
        if result.n_samples and len(seen.t2) != result.n_samples:
            raise InvalidInputError(
                f"rows='fit', and X has {len(seen.t2)} rows where the fit had {result.n_samples}"
            )
        known = seen.t2, seen.spe
    floor = passes.eps * result.total_variance
    found = limits_of(result, alpha, rows, limits, known, floor)
    return replace(seen, limits=found, alpha=alpha, rows=rows)


def limits_of(
    result: PrincipalComponents,
    alpha: float,
    rows: str = NEW,
    limits: str = AUTO,
    known: tuple[Array, ...] | None = None,
    floor: float = 0.0,
) -> dict[str, Limit]:
    """The limits of T^2 and of SPE.

    known : (t2, spe) of the rows of the fit, each (n,), or None.  floor : the least limit of SPE,
        for what rounding leaves where the components hold all of the variance.
    Raises InvalidInputError where they are not known without these.
    """
    if known is not None:
        defined = np.isfinite(known[0])  # not of rows without any cell
        known = known[0][defined], known[1][defined]
    weight = next((w for w in (result.weight, result.n_samples) if w > 0), MANY)
    centred = result.feature_mean is None
    design = 0 if result.removal is None else len(result.removal.coefficients)
    leverage = (int(centred) + design) / weight
    freedom = weight - int(centred) - design
    unit = (weight - result.ddof) / freedom  # variances here have the divisor ``freedom``
    k = min(result.n_components, result.rank)
    if not 0 < k < freedom:
        raise InvalidInputError(
            f"{k} components of rank above 0 and {freedom:g} degrees of freedom have no limits; "
            "fit fewer components, or more rows"
        )
    rest, values = _rest(result, k, unit, freedom, leverage, known)
    kept, dimensions = result.explained_variance[:k] * unit, result.n_dimensions - k
    counts = np.ones(0 if values is None else len(values))
    if values is None:
        values, counts = stand_ins(rest, min(dimensions, freedom - k))
    # a new value is divided by a deviation that does not know it
    divided = result.divided_by_deviations and freedom > 2.0
    scaling = freedom / (freedom - 2.0) if divided else 1.0
    one = FittedSpectrum(kept, rest, values, counts, dimensions, freedom, leverage, scaling)
    made = _normal_limits(one, alpha, rows) if centred and limits != EMPIRICAL else None
    enough = known is not None and len(known[0]) * alpha >= ENOUGH
    if known is not None and (made is None or (limits == AUTO and rows == NEW and enough)):
        made = _empirical_limits(one, alpha, rows, known[0] / unit, known[1])
    if made is None:
        raise InvalidInputError(
            "this fit did not subtract the means, and T^2 and SPE measure from them; fit with "
            "center=True, or give reference=, the rows of the fit"
        )
    t2, spe = made
    scaled = {name: value * unit for name, value in t2.others.items()}
    return {
        T2: Limit(t2.value * unit, t2.method, scaled),
        SPE: Limit(max(spe.value, floor), spe.method, spe.others),
    }


def _rest(
    result: PrincipalComponents,
    k: int,
    unit: float,
    freedom: float,
    leverage: float,
    known: tuple[Array, ...] | None,
) -> tuple[Array, Array | None]:
    """((3,) sums of powers of the variances left out, these or None), of divisor ``freedom``."""
    total, kept = result.total_variance, result.explained_variance[:k]
    first = total - float(np.sum(kept))
    if first <= NOTHING_LEFT * total:
        return np.zeros(3), np.zeros(1)
    if result.spectrum is not None:
        values = np.maximum(result.spectrum[k:], 0.0) * unit
        return np.array([np.sum(values**power) for power in (1, 2, 3)]), values
    second, third = result.total_squares - float(np.sum(kept**2)), result.rest_cubes
    if np.isfinite(third) and second > 0:
        third = max(third, second**2 / first)  # Cauchy and Schwarz
        return np.array([first, second, third]) * unit ** np.array([1, 2, 3]), None
    if known is None:
        raise InvalidInputError(
            "this fit iterated, and does not know the powers of all variances, which limits of "
            "SPE need; give reference=, the rows of the fit, or fit with solver='scatter' or 'gram'"
        )
    return rest_of_moments(known[1].mean(), known[1].var(ddof=1), freedom, leverage), None


def _normal_limits(one: FittedSpectrum, alpha: float, rows: str) -> tuple[Limit, Limit]:
    """For Gaussian rows, with the textbooks' limits beside those that are used."""
    many, left = {"chi-square": one.t2_of_many(alpha)}, bool(one.rest[0] > 0)
    textbook = {"Jackson-Mudholkar": one.spe_of_many(alpha)} if left else {}
    if rows == FIT:
        beta = Limit(one.t2_of_fit(alpha), "beta", many)
        found = one.spe_of_fit(alpha) if left else 0.0
        return beta, Limit(found, "moments of the spectrum, rows of the fit", textbook)
    f = Limit(
        one.t2_of_new(alpha),
        "F, for scores that shrink",
        {"F": one.t2_of_new(alpha, shrunk=False), **many},
    )
    found = one.spe_of_new(alpha) if left else 0.0
    return f, Limit(found, "moments of the spectrum, new rows", textbook)


def _empirical_limits(
    one: FittedSpectrum, alpha: float, rows: str, t2: Array, spe: Array
) -> tuple[Limit, Limit]:
    """By the rows of the fit.  t2 : of variances of divisor ``freedom``."""
    method = f"quantile of {len(t2)} rows of the fit"
    if rows == NEW:
        left = np.maximum(1.0 - one.leverage - t2 / one.freedom, 1e-12)  # 1 - leverage of each row
        shrunk = float(np.mean(one.shrinkage())) * (one.freedom - 1.0) / one.freedom
        t2, spe = shrunk * t2 / (left * (1.0 - one.leverage)), spe / left**2
        if one.rest[0] > 0:  # components turn towards a row by more, where they are less certain
            own = one.rest[0] * (1.0 - one.leverage) * float(np.mean(left**-2.0))
            spe = spe * (one.powers_of_new()[0] / own)
        method += ", each left out"
    if (len(t2) + 1) * alpha < 1.0:
        raise InvalidInputError(
            f"no limit at alpha={alpha:g} from {len(t2)} rows of the fit; expected alpha from "
            f"{np.ceil(1e4 / (len(t2) + 1)) / 1e4:g} on, or limits='normal' after a centred fit"
        )
    return (Limit(order_statistic(t2, alpha), method), Limit(order_statistic(spe, alpha), method))


def _seen(passes: RowPasses, distances: RowDistances, name: str) -> Monitor:
    """All rows, without limits: one pass."""
    values = passes.table(name, distances)
    t2, spe, missing = (np.ascontiguousarray(values[:, i]) for i in range(len(COLUMNS)))
    return Monitor(t2, spe, missing.astype(np.int64), {}, np.nan, FIT, passes, distances)


def monitored(model: Any) -> PrincipalComponents:
    """The result of a fitted PCA. Raises InvalidInputError for other models."""
    result = decomposition_of(model, "monitor(PCA(5).fit(X), new)")
    if not (isinstance(result, PrincipalComponents) and result.principal):
        raise InvalidInputError(
            f"got {in_words(model)}; T^2 and SPE are of the components of a PCA (but with "
            "missing='impute'), IncrementalPCA or GenotypePCA: of a rotated model those of the PCA "
            "that was rotated"
        )
    return result


def _check(alpha: float, rows: str, limits: str, reference: Any) -> None:
    if not (isinstance(alpha, (float, np.floating)) and 0.0 < alpha < 1.0):
        raise InvalidInputError(f"alpha={alpha!r}; expected a probability such as 0.01")
    for name, value, allowed in (
        ("rows", rows, (NEW, FIT)),
        ("limits", limits, (AUTO, NORMAL, EMPIRICAL)),
    ):
        if value not in allowed:
            raise InvalidInputError(f"{name}={value!r}; expected one of {', '.join(allowed)}")
    if limits == EMPIRICAL and rows == NEW and reference is None:
        raise InvalidInputError("limits='empirical' needs reference=, the rows of the fit")
