"""PCs of a fit as series in time: pairs of samples that are a lag apart, across no gap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.models.contract.linear import decomposition_of, of_real_data
from streampca.models.contract.request import whole_number
from streampca.models.results.decomposition import Decomposition
from streampca.models.side_data.cycles import is_date

UNEVEN = 0.2  # of a step: a month is 28 to 31 days
MONTH = (27.5, 31.5)  # days


@dataclass(frozen=True)
class PCSeries:
    """The k leading PCs of a fit.

    result : of the fit.  scores : (n, k), NaN for a sample without observation.
    rows : (series, steps) numbers of the samples, in the order of time along the last axis.
    position : (steps,) times in whole steps; a gap is more than one.
    """

    result: Decomposition
    scores: Array
    rows: Array
    position: Array

    @classmethod
    def of(cls, source: Any, k: int | None, scores: Any, example: str) -> PCSeries:
        """Of a fitted model or its result.

        k : None is all that vary.  scores : (n, >= k) where the fit kept none.
        example : of a call, for messages. Raises InvalidInputError.
        """
        known = isinstance(source, Decomposition)
        result = of_real_data(source, example) if known else decomposition_of(source, example)
        if not result.principal:
            raise InvalidInputError(f"expected EOFs, not a {result.method}: {example}")
        most = min(result.n_components, result.rank)
        count = most if k is None else whole_number("k", k, 1, most, "None or ")
        samples = result.labels.samples
        table = np.asarray(result.eof.pcs(scores=scores), np.float64)
        table = table.reshape(-1, result.n_components)
        if len(table) != len(samples):
            raise InvalidInputError(
                f"scores of {len(table)} rows; expected those of the {len(samples)} samples of the "
                "fit: scores=pca.project(X)"
            )
        rows, position = in_time(samples)
        return cls(result, table[:, :count], rows, position)

    @property
    def observed(self) -> Array:
        """(m, k) PCs of the samples with observations."""
        return self.scores[np.isfinite(self.scores).all(axis=1)]

    def pairs(self, lag: int, least: int) -> tuple[Array, Array]:
        """(m, k) earlier PCs, and those ``lag`` steps later.

        Raises InvalidInputError for fewer than ``least`` pairs.
        """
        first, second = (self.scores[one] for one in pairs_of(self.rows, self.position, lag))
        both = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
        if np.count_nonzero(both) < least:
            raise InvalidInputError(
                f"{np.count_nonzero(both)} pairs of samples are {lag} steps of time apart, across "
                f"no gap; {self.scores.shape[1]} PCs need at least {least}. Take a smaller lag, or "
                "fewer PCs: k="
            )
        return first[both], second[both]


def in_time(samples: AxisLabels) -> tuple[Array, Array]:
    """(series, steps) numbers of samples, and (steps,) positions in time."""
    axis = _time_axis(samples)
    rows = np.moveaxis(np.arange(len(samples)).reshape(samples.sizes), axis, -1)
    dim = samples.dims[axis]
    values = samples.coords.get(dim)
    if len(samples.dims) == 1:
        columns = (samples.coordinate(name) for name in (*samples.extra, *samples.grids))
        dates = [one for one in columns if one is not None and is_date(one)]
        if dates and (values is None or not is_date(np.asarray(values))):
            values = dates[0]
    known = None if values is None else np.asarray(values)
    return rows.reshape(-1, samples.sizes[axis]), _positions(known, samples.sizes[axis], dim)


def pairs_of(rows: Array, position: Array, lag: int) -> tuple[Array, Array]:
    """(m,) numbers of samples, and of those ``lag`` steps after them, from :func:`in_time`."""
    places = np.searchsorted(position, position + lag)
    inside = places < len(position)
    inside[inside] = position[places[inside]] == position[inside] + lag
    return rows[:, inside].ravel(), rows[:, places[inside]].ravel()


def _time_axis(samples: AxisLabels) -> int:
    """The number of the dimension of time among those of the samples."""
    if len(samples.dims) == 1:
        return 0
    dates = [dim for dim in samples.dims if is_date(np.asarray(samples.coords.get(dim, [])))]
    named = dates if len(dates) == 1 else [dim for dim in samples.dims if dim == "time"]
    if not named:
        raise InvalidInputError(
            f"samples have the dimensions {', '.join(samples.dims)}; expected dates along one of "
            f"them, or the name 'time': X.rename({{{samples.dims[-1]!r}: 'time'}})"
        )
    return samples.dims.index(named[0])


def _positions(values: Array | None, n: int, dim: str) -> Array:
    """(n,) times in whole steps. Raises InvalidInputError where they are not evenly spaced.

    values : dates or numbers; anything else counts as evenly spaced.
    """
    if values is None or n < 3 or not (is_date(values) or values.dtype.kind in "iuf"):
        return np.arange(n)
    times = _numbers(values)
    gaps = np.diff(times)
    if not (gaps > 0).all():  # NaN too
        i = int(np.flatnonzero(~(gaps > 0))[0])
        raise InvalidInputError(
            f"times do not increase: {values[i]} is followed by {values[i + 1]}; expected samples "
            f"in the order of time, X.sortby({dim!r})"
        )
    step = np.median(gaps)
    step = gaps[np.abs(gaps / step - 1.0) < UNEVEN].mean()
    steps = np.rint(gaps / step)
    uneven = (np.abs(gaps / step - steps) > UNEVEN * np.maximum(steps / 3.0, 1.0)) | (steps < 1)
    if uneven.any():
        i = int(np.flatnonzero(uneven)[0])
        raise InvalidInputError(
            f"samples are not evenly spaced: {values[i]} is followed by {values[i + 1]}, "
            f"{gaps[i] / step:.3g} times the usual step; expected whole steps, such as "
            f"X.resample({dim}=...).mean()"
        )
    return np.concatenate([[0], np.cumsum(steps.astype(np.int64))])


def _numbers(values: Array) -> Array:
    """(n,) times as float64: days of dates, or months where dates are a month apart."""
    if not is_date(values):
        return values.astype(np.float64)
    if values.dtype.kind == "M":
        days = (values - values[0]) / np.timedelta64(1, "D")
        months = values.astype("datetime64[M]").astype(np.float64)
    else:
        days = np.array([(one - values[0]).total_seconds() / 86400.0 for one in values])
        months = np.array([12.0 * one.year + one.month for one in values])
    monthly = MONTH[0] < np.median(np.diff(days)) < MONTH[1]
    return months if monthly and (np.diff(months) > 0).all() else days


def in_units_of_data(result: Decomposition, maps: Array) -> Array:
    """(m, p) maps of centred, scaled and weighted rows, in the units of the rows themselves; NaN
    for features that the fit left out."""
    made = maps if result.divisors is None else maps * result.divisors
    made = np.array(made)
    made[:, [*result.dropped, *result.filtered]] = np.nan
    return made
