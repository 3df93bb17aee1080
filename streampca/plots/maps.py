"""Maps of modes over latitude and longitude, and their time series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix.places import Grid, grid_of
from streampca.models.decomposition import Decomposition
from streampca.plots.canvas import (
    FAINT,
    INK,
    MUTED,
    PALETTE,
    checked_axes,
    component_index,
    component_name,
    drawing_axes,
    result_of,
    sheet,
    state,
)
from streampca.plots.scores import column_of, scores_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
LAND = "#d9d9d9"  # features without observation
KINDS = ("eof", "correlation", "covariance")
COLUMNS = 2  # of a sheet of maps


def map(
    result: Any,
    mode: int | Sequence[int] = 1,
    *,
    kind: str = "eof",
    variable: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A mode as a map over latitude and longitude, or several modes as a sheet of maps.

    result : a fitted estimator or a Decomposition of features on a grid.
    mode : its number, from 1, or several.
    kind : "eof" the unit vectors, "correlation" of the PC with the data, "covariance" with the PC
        of unit variance, in the units of the data.
    variable : which one, of a fit of several; None takes the first.

    Colours diverge from 0, and the sheet has one scale. Features without observation (land) are
    grey. Where cartopy is installed and has coastlines on this machine, they are drawn; nothing is
    ever downloaded. Two dimensions that are not latitude and longitude are drawn as a picture.
    Returns the Axes; of a sheet its frame: ``ax.child_axes`` are the maps, and the colourbar.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    """
    found = result_of(result)
    indices = [
        component_index(number, found) for number in np.atleast_1d(np.asarray(mode)).tolist()
    ]
    grid, where = _grid_of(found, variable)
    fields = _fields(found, indices, kind)[:, where]
    reach = float(np.nanmax(np.abs(fields), initial=0.0)) or 1.0
    panels: list[Axes] = []
    if len(indices) == 1:
        checked_axes(ax)
        drawn = drawing_axes(ax, _size(grid))
    else:
        size, gap = _panel(grid, len(indices))
        drawn, panels = sheet(ax, len(indices), size, COLUMNS, gap)
    for index, values, panel in zip(indices, fields, panels or [drawn], strict=True):
        image = _draw_field(drawing_axes(panel, (1, 1)), grid, grid.field(values), reach)
        if panels:
            name = component_name(index, found, "EOF" if kind == "eof" else "PC")
            panel.set_title(name, loc="left", fontsize="small", color=INK)
    place = drawn.inset_axes((1.03, 0.1, 0.02, 0.8))
    bar: Any = drawn.figure.colorbar(image, cax=place)
    bar.set_label(_meaning(found, kind, variable), color=INK, parse_math=False)
    bar.ax.tick_params(colors=MUTED, labelcolor=INK, labelsize="small", length=3)
    bar.outline.set_visible(False)
    pad = 20.0 if panels else 6.0
    state(drawn, _said(found, indices, fields[0], kind, variable), pad)
    return drawn


def _grid_of(found: Decomposition, variable: str | None) -> tuple[Grid, slice]:
    """The grid of a variable, and its features. Raises InvalidInputError."""
    axis, where = found.labels.features, slice(None)
    if axis.parts:
        name = next(iter(axis.parts)) if variable is None else variable
        if name not in axis.parts:
            raise InvalidInputError(f"variable={variable!r}; expected one of {[*axis.parts]}")
        axis, where = axis.parts[name], axis.slices[name]
    grid = grid_of(axis)
    if grid is None:
        raise InvalidInputError(
            f"the features ({', '.join(axis.dims)}) lie on no grid of two dimensions; expected "
            "latitude and longitude, as a fit of an xarray.DataArray or a NetCDF file has them. "
            "plots.loadings(model) shows the largest loadings of any features"
        )
    return grid, where


def _fields(found: Decomposition, indices: list[int], kind: str) -> Array:
    """(modes, p) values, NaN without observation."""
    if kind not in KINDS:
        raise InvalidInputError(f"kind={kind!r}; expected one of {KINDS}")
    fields = np.array(found.require_components()[indices], dtype=np.float64)
    if kind != "eof":
        fields = np.array(found.structure[:, indices].T)
        fields *= 1.0 if found.divisors is None else found.divisors
    if kind == "correlation":
        if found.feature_variance is None:
            raise InvalidInputError("this model has no variances of its features; fit it again")
        deviation = np.sqrt(np.maximum(np.asarray(found.feature_variance), 0.0))
        deviation[found.constant] = 0.0
        undefined = np.full_like(fields, np.nan)
        fields = np.divide(fields, deviation, out=undefined, where=deviation > 0)
    fields[:, found.dropped] = np.nan
    return fields


def _size(grid: Grid) -> tuple[float, float]:
    """Inches of a map with a colourbar."""
    rows, columns = (np.ptp(grid.y), np.ptp(grid.x)) if grid.globe else grid.shape
    return 6.4, float(np.clip(5.4 * rows / (columns or 1) + 0.9, 2.6, 7.0))


def _panel(grid: Grid, count: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Inches of a panel of a sheet that its map fills, and the gaps between panels, as shares."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    width = 4.2 * columns / (columns + 0.2 * (columns - 1))
    y, x = (np.ptp(grid.y), np.ptp(grid.x)) if grid.globe else grid.shape
    height = float(np.clip(width * _aspect(grid) * y / (x or 1), 0.8, 4.0))
    gap = 0.6 / height  # for a title and the numbers of an axis
    inches = (height * (rows + (rows - 1) * gap) / 0.86 - 0.4) / rows
    return (5.0, inches), (0.2, gap)


def _aspect(grid: Grid) -> float:
    """How much longer a degree of latitude is drawn than one of longitude."""
    if not grid.globe or np.ptp(grid.y) >= 120:
        return 1.0
    middle = np.deg2rad(float(np.nanmean(grid.y)))
    return float(min(1.0 / max(np.cos(middle), 0.25), 2.0))


def _draw_field(ax: Axes, grid: Grid, values: Array, reach: float) -> Any:
    """One field, with the coordinates and the coastlines of a globe. Returns the image."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    x, y = grid.x, grid.y
    if grid.globe and x.ndim == 1:  # from west to east, also across the meridian where it begins
        order = np.argsort(x, kind="stable")
        x, values = x[order], values[:, order]
    image = ax.pcolormesh(x, y, np.ma.masked_invalid(values), cmap=colormaps["RdBu_r"],
                          vmin=-reach, vmax=reach, shading="nearest", rasterized=True)  # fmt: skip
    ax.set_facecolor(LAND)
    ax.set_axisbelow(False)
    for spine in ax.spines.values():
        spine.set_visible(True)
    if not grid.globe:
        ax.invert_yaxis()
        ax.set_aspect("equal")
        ax.set_xlabel(grid.names[1])
        ax.set_ylabel(grid.names[0])
        return image
    ax.set_aspect(_aspect(grid))
    limits = ax.get_xlim(), ax.get_ylim()
    _draw_coastlines(ax, float(np.nanmax(x)) > 180)
    ax.set_xlim(*limits[0])
    ax.set_ylim(*limits[1])
    for axis, values in ((ax.xaxis, grid.x), (ax.yaxis, grid.y)):
        steps = [1, 3, 6, 10] if np.ptp(values) > 60 else [1, 2, 5, 10]  # 30 or 60 degrees
        axis.set_major_locator(MaxNLocator(7, steps=steps))
    ax.xaxis.set_major_formatter(_east)
    ax.yaxis.set_major_formatter(_north)
    return image


def _east(degrees: float, _: float = 0.0) -> str:
    turned = (degrees + 180) % 360 - 180
    return _degrees(turned, "W", "E") if abs(turned) not in (0, 180) else f"{abs(turned):g}°"


def _north(degrees: float, _: float = 0.0) -> str:
    return _degrees(degrees, "S", "N") if degrees else "0°"


def _degrees(value: float, below: str, above: str) -> str:
    return f"{abs(value):g}°{below if value < 0 else above}"


def _draw_coastlines(ax: Axes, eastward: bool) -> None:
    """Coastlines that cartopy has on this machine.  eastward : longitudes run from 0 to 360."""
    from matplotlib.collections import LineCollection

    lines: list[Array] = []
    for path in _coastline_files():
        from cartopy.io import shapereader

        for shape in shapereader.Reader(path).geometries():
            for part in getattr(shape, "geoms", [shape]):
                line = np.asarray(part.coords)[:, :2]
                lines += [line, line + np.array([360.0, 0.0])] if eastward else [line]
    if lines:
        ax.add_collection(LineCollection(lines, colors=INK, linewidths=0.6), autolim=False)


def _coastline_files() -> list[Path]:
    """The file of the coastlines, if it lies on this machine; never by a download."""
    try:
        from cartopy import config
    except ImportError:
        return []
    folders = [config[name] for name in ("pre_existing_data_dir", "data_dir", "repo_data_dir")]
    place = Path("shapefiles", "natural_earth", "physical")
    names = [f"ne_{scale}_coastline.shp" for scale in ("110m", "50m")]
    found = [Path(folder, place, name) for name in names for folder in folders if folder]
    return [path for path in found if path.is_file()][:1]


def _meaning(found: Decomposition, kind: str, variable: str | None) -> str:
    name = variable or found.labels.name or "the data"
    units = found.labels.attrs_of(str(variable)).get("units")
    if kind == "eof":
        return "EOF (unit vector)"
    if kind == "correlation":
        return f"Correlation of the PC with {name}"
    return f"{name}, per standard deviation of the PC" + (f" [{units}]" if units else "")


def _said(
    found: Decomposition, indices: list[int], field: Array, kind: str, variable: str | None
) -> str:
    of = f" of {variable}" if variable else ""
    if len(indices) > 1:
        share = found.explained_variance_ratio[indices].sum()
        return f"{len(indices)} modes{of} carry {100 * share:.1f} % of the variance"
    share = 100 * found.explained_variance_ratio[indices[0]]
    gone = int(np.isnan(field).sum())
    land = f"; {gone:,} cells without observation are grey" if gone else ""
    name = "EOF " if kind == "eof" else "PC"
    return f"{name}{indices[0] + 1}{of} carries {share:.1f} % of the variance{land}"


# --------------------------------------------------------------------------------------------------
# Time series.


def pcs(
    result: Any,
    mode: int | Sequence[int] = (1, 2, 3),
    scores: Any = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Principal components as time series of unit variance, one below the other.

    result : a fitted estimator or a Decomposition.  mode : numbers from 1; those that it has.
    scores : (n, k) from ``transform``; None takes those of the training rows, if the fit kept them.

    Dates are those of the samples; without them samples are counted.
    Returns the Axes; of several modes the frame, whose series are ``ax.child_axes``.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.
    """
    found = result_of(result)
    numbers = np.atleast_1d(np.asarray(mode)).tolist()
    if not isinstance(mode, (int, np.integer)):
        numbers = [one for one in numbers if one <= found.n_components] or numbers
    indices = [component_index(number, found) for number in numbers]
    source = scores_of(found, scores)
    n = int(np.prod(source.shape[:-1]))
    times, label = _times(found, scores, n)
    panels: list[Axes] = []
    if len(indices) == 1:
        checked_axes(ax)
        drawn = drawing_axes(ax, (8.0, 2.8))
    else:
        drawn, panels = sheet(ax, len(indices), (8.0, 1.7), 1, (0.0, 0.25))
    for index, panel in zip(indices, panels or [drawn], strict=True):
        deviation = np.sqrt(found.explained_variance[index]) or 1.0
        values = column_of(source, index) / deviation
        _draw_series(drawing_axes(panel, (1, 1)), times, values)
        panel.set_ylabel(component_name(index, found), fontsize="small")
        panel.tick_params(labelbottom=panel is (panels or [drawn])[-1])
    (panels or [drawn])[-1].set_xlabel(label)
    share = 100 * found.explained_variance_ratio[indices].sum()
    what = f"PC{indices[0] + 1} carries" if len(indices) == 1 else f"{len(indices)} PCs carry"
    state(drawn, f"{what} {share:.1f} % of the variance; in standard deviations")
    return drawn


def _times(found: Decomposition, scores: Any, n: int) -> tuple[Array, str]:
    """(n,) dates or numbers along the samples, and what they are."""
    axis = found.labels.samples
    dim = axis.dims[0]
    times = getattr(scores, "coords", {}).get(dim) if scores is not None else axis.coords.get(dim)
    values = None if times is None or len(axis.dims) > 1 else np.asarray(times)
    if values is None or values.shape != (n,):
        return np.arange(1, n + 1), "Sample"
    if values.dtype.kind == "O" and n and hasattr(values[0], "timetuple"):  # cftime
        return np.array([_year(one) for one in values]), dim
    if values.dtype.kind not in "Miuf":
        return np.arange(1, n + 1), "Sample"
    return values, dim


def _year(date: Any) -> float:
    """A date of any calendar as a year with its fraction."""
    return float(date.year + (date.timetuple().tm_yday - 1 + date.hour / 24) / 365.25)


def _draw_series(ax: Axes, times: Array, values: Array) -> None:
    """A line, filled by its sign where it is short enough to show that."""
    ax.grid(axis="y", color=FAINT, linewidth=0.7)
    ax.axhline(0.0, color=MUTED, linewidth=0.8)
    if len(values) <= 2000:
        ax.fill_between(times, values, where=values > 0, color=PALETTE[4], alpha=0.6,
                        linewidth=0, interpolate=True)  # fmt: skip
        ax.fill_between(times, values, where=values < 0, color=PALETTE[0], alpha=0.6,
                        linewidth=0, interpolate=True)  # fmt: skip
    ax.plot(times, values, color=INK, linewidth=0.7, rasterized=len(values) > 20_000)
    ax.margins(x=0.01)
