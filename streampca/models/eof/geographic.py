"""Geographically weighted PCA: at every location, the PCA of the samples near it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import Array
from streampca.matrix import Block, ChunkedMatrix, Labels
from streampca.matrix.components import component_axis
from streampca.matrix.labels import AxisLabels
from streampca.matrix.places import RADIANS, latitude, longitude
from streampca.models.contract.request import whole_number
from streampca.models.decompose.eigenproblem import RowsSink
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Running,
    Steps,
    choose,
    execute,
    single_threaded_blas,
)
from streampca.sources import as_matrix, counted

NAME = "geographically weighted PCA"
EARTH = 6371.0  # radius in km
TILE_NBYTES = 16 << 20  # of weights and products of a tile of locations
LOCATIONS = 64  # of a tile at most
FAR = 1e4  # squared distance of a local mean from that of its tile, in local variances


@dataclass(frozen=True)
class LocalComponents:
    """A PCA at each of n locations; NaN at those without two neighbours, or without observations.

    components : (n, k, p) unit vectors, turned to the side of those of the whole data.
    explained_variance : (n, k) sum of w (score - local mean)^2 over the sum of the weights w.
    explained_variance_ratio : (n, k) of total_variance (n,).
    mean : (n, p) local means.
    effective_sizes : (n,) (sum w)^2 / sum w^2.
    coordinates : (n, 2) longitudes and latitudes in degrees, or x and y.  labels : of X.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import local_components
    >>> rng = np.random.default_rng(0)
    >>> places, X = rng.uniform(0, 10, (200, 2)), rng.standard_normal((200, 3))
    >>> local = local_components(X, 2, bandwidth=4, coordinates=places, metric="euclidean")
    >>> local.components.shape, local.transform(X[:5], places[:5]).shape
    ((200, 2, 3), (5, 2))
    """

    components: Array
    explained_variance: Array
    total_variance: Array
    mean: Array
    effective_sizes: Array
    coordinates: Array
    metric: str
    labels: Labels

    @property
    def explained_variance_ratio(self) -> Array:
        """(n, k) shares of the local variance."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.explained_variance / self.total_variance[:, None])

    @property
    def leading_features(self) -> Array:
        """(n, k) numbers of the features with the largest loadings; -1 without a PCA."""
        lost = np.isnan(self.components).any(axis=2)
        return np.where(lost, -1, np.abs(np.nan_to_num(self.components)).argmax(axis=2))

    def transform(self, rows: Any, coordinates: Any) -> Array:
        """(m, k) scores of rows (m, p) at coordinates (m, 2), by the nearest location."""
        from scipy.spatial import KDTree

        known = np.flatnonzero(np.isfinite(self.total_variance))
        tree = KDTree(_points(self.coordinates[known], self.metric))
        near = known[tree.query(_points(_checked(coordinates, None), self.metric))[1]]
        rows = np.asarray(rows, np.float64) - self.mean[near]
        return np.asarray(np.einsum("ip,ikp->ik", rows, self.components[near]))

    def to_xarray(self) -> Any:
        """All of these as an ``xarray.Dataset``, by the dimensions of the samples."""
        from streampca.sources.labelled.to_xarray import to_dataset

        samples, features = self.labels.samples, self.labels.features
        modes = component_axis(self.components.shape[1], samples, features)
        tables: dict[str, Any] = {
            "components": (self.components, [samples, modes, features]),
            "explained_variance": (self.explained_variance, [samples, modes]),
            "explained_variance_ratio": (self.explained_variance_ratio, [samples, modes]),
            "leading_features": (self.leading_features, [samples, modes]),
            "total_variance": (self.total_variance, [samples]),
            "local_mean": (self.mean, [samples, features]),
            "effective_sizes": (self.effective_sizes, [samples]),
        }
        return to_dataset(tables, {"method": "GWPCA", "metric": self.metric})


def local_components(
    X: Any,
    k: int = 2,
    *,
    bandwidth: float,
    kernel: str = "bisquare",
    metric: str = "haversine",
    coordinates: Any = None,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> LocalComponents:
    """GWPCA: how p variables vary together near each location, and where that differs.

    X : (n, p), n locations and few variables, anything that ``streampca.open`` takes. Samples
        without any observation, such as land, have no PCA and are nobody's neighbours.
    bandwidth : b of the kernel, km with "haversine", else in the unit of the coordinates.
    kernel : weights at distance d: "bisquare", (1 - (d / b)^2)^2 up to b; "gaussian",
        exp(-(d / b)^2 / 2); "exponential", exp(-d / (2 b)).
    metric : "haversine" (great circles; the radius is 6371 km), or "euclidean".
    coordinates : (n, 2) longitude and latitude in degrees, or x and y; None: those that label the
        samples (lon and lat, or x and y).
    dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.

    Local covariances are sums about the mean of a tile of neighbouring locations; where that is
    far from the local mean, against the local spread, they are summed again about it. Variances are
    exact to rounding, about 1e-12. Signs follow the components of the whole data.
    Cost: one pass; then for each location those within b (all, of the other kernels), n m p^2
    flops for m of them. 8 n p (k + 3) bytes: the result is larger than the data.
    Raises InvalidInputError, NonFiniteError (samples with a part missing), MemoryLimitError.
    Source: Harris, Brunsdon and Charlton 2011, Int. J. Geographical Information Science 25,
    section 2.2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import local_components
    >>> rng = np.random.default_rng(0)
    >>> places = rng.uniform(0, 100, (400, 2))
    >>> west = (places[:, :1] < 50) * rng.standard_normal((400, 1))
    >>> X = west * [1.0, 1.0] + 0.1 * rng.standard_normal((400, 2))
    >>> local = local_components(X, 1, bandwidth=20, coordinates=places, metric="euclidean")
    >>> local.explained_variance_ratio[places[:, 0] < 20].min().round(1)  # one mode in the west
    np.float64(1.0)
    """
    matrix = as_matrix(counted(X), dim=dim, missing_value=missing_value)
    n, p = matrix.shape
    whole_number("k", k, 1, p)
    if kernel not in KERNELS or metric not in METRICS:
        raise InvalidInputError(
            f"kernel={kernel!r}, metric={metric!r}; expected one of {', '.join(KERNELS)}, and one "
            f"of {', '.join(METRICS)}"
        )
    if not (isinstance(bandwidth, (int, float)) and 0 < bandwidth < np.inf):
        raise InvalidInputError(f"bandwidth={bandwidth!r}; expected a number above 0")
    samples = matrix.labels.samples
    where = _labelled(samples, metric) if coordinates is None else _checked(coordinates, n)
    near = Neighbours(where, float(bandwidth), kernel, metric)
    running = Running(memory_limit, scheduler, progress)
    planned = choose(matrix, NAME, [_candidate(matrix, k, near)], memory_limit)
    return execute(planned, running).answer


@dataclass(frozen=True)
class Neighbours:
    """Who weighs how much at a location."""

    coordinates: Array
    bandwidth: float
    kernel: str
    metric: str

    def weights(self, at: Array, of: Array) -> Array:
        """(len(at), len(of)) of samples with these numbers at locations with these."""
        points = [_points(self.coordinates[one], self.metric) for one in (at, of)]
        squares = np.maximum(_square_distances(*points), 0.0)
        distance = np.sqrt(squares)
        if self.metric == "haversine":
            distance = 2.0 * EARTH * np.arcsin(np.minimum(distance / (2.0 * EARTH), 1.0))
        return np.asarray(KERNELS[self.kernel](distance / self.bandwidth))

    def tiles(self, known: Array) -> Iterator[tuple[Array, Array]]:
        """(numbers of neighbouring locations, numbers of all that weigh at some of them)."""
        from scipy.spatial import KDTree

        points = _points(self.coordinates[known], self.metric)
        tree = KDTree(points, leafsize=LOCATIONS)
        order = np.asarray(tree.indices)
        for start in range(0, len(order), LOCATIONS):
            tile, of = order[start : start + LOCATIONS], np.arange(len(order))
            if self.kernel == "bisquare":
                middle = points[tile].mean(axis=0)
                reach = np.sqrt(_square_distances(middle[None], points[tile]).max()) + self._chord
                of = np.sort(tree.query_ball_point(middle, reach * (1.0 + 1e-9)))
            yield known[tile], known[np.asarray(of, np.int64)]

    @property
    def _chord(self) -> float:
        """The bandwidth as a distance of points."""
        if self.metric == "euclidean":
            return self.bandwidth
        return 2.0 * EARTH * float(np.sin(min(self.bandwidth / EARTH, np.pi) / 2.0))


def _bisquare(share: Array) -> Array:
    return np.where(share <= 1.0, (1.0 - share**2) ** 2, 0.0)


KERNELS: dict[str, Any] = {
    "bisquare": _bisquare,
    "gaussian": lambda share: np.exp(-0.5 * share**2),
    "exponential": lambda share: np.exp(-0.5 * share),
}
METRICS = ("haversine", "euclidean")


def _points(coordinates: Array, metric: str) -> Array:
    """(n, 2), or (n, 3) on the globe, in km."""
    if metric == "euclidean":
        return coordinates
    lon, lat = np.deg2rad(coordinates).T
    return EARTH * np.column_stack(
        [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
    )


def _square_distances(a: Array, b: Array) -> Array:
    """(len(a), len(b)), one dimension after the other: the product form would lose small ones."""
    found = np.zeros((len(a), len(b)))
    for x, y in zip(a.T, b.T, strict=True):
        found += (x[:, None] - y) ** 2
    return found


def _checked(coordinates: Any, n: int | None) -> Array:
    found = np.asarray(coordinates, np.float64)
    if found.ndim != 2 or found.shape[1] != 2 or n not in (None, len(found)):
        raise InvalidInputError(
            f"coordinates of shape {found.shape}; expected ({'m' if n is None else n}, 2): "
            "longitude and latitude, or x and y"
        )
    if not np.isfinite(found).all():
        raise NonFiniteError("coordinates hold missing values; leave these samples out")
    return found


def _labelled(samples: AxisLabels, metric: str) -> Array:
    """(n, 2) coordinates that label the samples. Raises InvalidInputError."""
    names: tuple[str | None, str | None] = longitude(samples), latitude(samples)
    if None in names and metric == "euclidean":
        known = {*samples.coords, *samples.extra, *samples.grids}
        names = next(
            (one for one in (("x", "y"), ("x_coord", "y_coord")) if {*one} <= known), names
        )
    found = [None if name is None else samples.coordinate(name) for name in names]
    if any(one is None for one in found):
        raise InvalidInputError(
            f"the samples ({', '.join(samples.dims)}) have no coordinates lon and lat"
            f"{', or x and y' if metric == 'euclidean' else ''}; expected coordinates=(n, 2), or "
            "dim=('lat', 'lon')"
        )
    columns = []
    for name, values in zip(names, found, strict=True):
        units = str(samples.attrs.get(str(name), {}).get("units", "")).lower()
        numbers = np.asarray(values, np.float64)
        columns.append(np.rad2deg(numbers) if units in RADIANS else numbers)
    return _checked(np.column_stack(columns), len(samples))


@dataclass(frozen=True)
class Values:
    """(rows, p) float64 values of a block; NaN where one is missing."""

    def __call__(self, block: Block) -> Array:
        return np.asarray(block.dense(), np.float64)


def _candidate(matrix: ChunkedMatrix, k: int, near: Neighbours) -> Candidate[LocalComponents]:
    """One pass over the samples; then tiles of locations."""
    n, p = matrix.shape
    spec = PassSpec(
        "values", 0, scratch=lambda length: 16 * length * p, kept_nbytes=8 * n * p, matrix=matrix
    )
    solve = {
        "values, means and components": 8 * n * p * (k + 3),
        "variances and neighbours": 8 * n * (k + 8),
        "a tile of locations": 6 * TILE_NBYTES + 8 * LOCATIONS * (8 * n + 4 * p * p),
    }
    solver = partial(_solve, spec=spec, k=k, near=near)
    reason = "one pass; then the local covariances of tiles of locations"
    return Candidate("tiles", reason, (spec,), solve, float(n) * n * p * p, solve=solver)


def _solve(
    planned: Planned[Any], *, spec: PassSpec, k: int, near: Neighbours
) -> Steps[LocalComponents]:
    (n, p), labels = planned.matrix.shape, planned.matrix.labels
    values = np.empty((n, p))
    yield Pass(spec, maps={"rows": Values()}, sinks={"rows": RowsSink(values, 0)})
    lost = ~np.isfinite(values)
    known = np.flatnonzero(~lost.all(axis=1))
    if lost[known].any():
        row = int(known[np.flatnonzero(lost[known].any(axis=1))[0]])
        raise NonFiniteError(
            f"sample {labels.samples.name(row)} has some of its {p} variables missing; expected "
            "all or none of them: X = X.dropna('sample')"
        )
    if len(known) < 2:
        raise InvalidInputError(
            f"{len(known)} of {n} samples with observations; expected at least 2: nothing varies"
        )
    out = LocalComponents(
        np.full((n, k, p), np.nan),
        np.full((n, k), np.nan),
        np.full(n, np.nan),
        np.full((n, p), np.nan),
        np.zeros(n),
        near.coordinates,
        near.metric,
        labels,
    )
    with single_threaded_blas():
        whole = np.linalg.eigh(np.cov(values[known].T).reshape(p, p))[1][:, ::-1][:, :k].T
        for tile, of in near.tiles(known):
            _tile(out, values, tile, of, near, whole)
    return out


def _tile(
    out: LocalComponents, values: Array, tile: Array, of: Array, near: Neighbours, whole: Array
) -> None:
    """The PCA at locations ``tile`` of the samples ``of``, in pieces of these."""
    p = values.shape[1]
    rows, columns = np.triu_indices(p)
    centre = values[tile].mean(axis=0)
    sums = np.zeros((len(tile), 2 + p + len(rows)))
    step = max(1, TILE_NBYTES // (8 * (len(tile) + 2 + p + len(rows))))
    for start in range(0, len(of), step):
        some = of[start : start + step]
        weights, x = near.weights(tile, some), values[some] - centre
        sums[:, 0] += weights.sum(axis=1)
        sums[:, 1] += np.sum(weights**2, axis=1)
        sums[:, 2:] += weights @ np.hstack([x, x[:, rows] * x[:, columns]])
    total, squares = sums[:, :1], sums[:, 1]
    mean = sums[:, 2 : 2 + p] / total
    local = np.empty((len(tile), p, p))
    local[:, rows, columns] = local[:, columns, rows] = sums[:, 2 + p :] / total
    local -= mean[:, :, None] * mean[:, None, :]
    spread = np.trace(local, axis1=1, axis2=2)
    for i in np.flatnonzero(np.sum(mean**2, axis=1) > FAR * spread):
        mean[i], local[i] = _about_its_mean(values, tile[i], of, near, centre, step)
    effective = total[:, 0] ** 2 / squares
    spectrum, vectors = np.linalg.eigh(local)
    k = len(whole)
    kept = np.swapaxes(vectors[:, :, ::-1][:, :, :k], 1, 2)
    kept = kept * np.where(np.einsum("tkp,kp->tk", kept, whole) < 0.0, -1.0, 1.0)[:, :, None]
    alone = effective <= 1.0 + 1e-12
    kept[alone], spectrum[alone], local[alone] = np.nan, np.nan, np.nan
    out.components[tile] = kept
    out.explained_variance[tile] = np.maximum(spectrum[:, ::-1][:, :k], 0.0)
    out.total_variance[tile] = np.trace(local, axis1=1, axis2=2)
    out.mean[tile] = mean + centre
    out.effective_sizes[tile] = effective


def _about_its_mean(
    values: Array, location: Any, of: Array, near: Neighbours, centre: Array, step: int
) -> tuple[Array, Array]:
    """(mean from the centre, covariance) at one location, centred before it is squared."""
    at, pieces = np.array([location]), [of[i : i + step] for i in range(0, len(of), step)]
    weights = [near.weights(at, some)[0] for some in pieces]
    total = sum(float(w.sum()) for w in weights)
    mean = sum(w @ (values[some] - centre) for w, some in zip(weights, pieces, strict=True)) / total
    scatter = np.zeros((values.shape[1],) * 2)
    for w, some in zip(weights, pieces, strict=True):
        x = values[some] - centre - mean
        scatter += (x * w[:, None]).T @ x
    return mean, scatter / total
