"""Maps of modes over latitude and longitude."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels
from streampca.matrix.places import Grid, grid_of, latitude, longitude
from streampca.plots.canvas import INK, NORMAL_95, drawing_axes, sheet, state, style_bar
from streampca.plots.presented import component_errors, indices_of, presented
from streampca.report.presentation import FeatureMap, Presentation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
LAND = "#d9d9d9"  # features without observation
COLUMNS = 2  # of a sheet of maps
# argument -> names of the dimension that it takes a value of, in lower case
EXTRA = {
    "lag": ("lag",),
    "level": (
        "level",
        "lev",
        "plev",
        "pressure",
        "pressure_level",
        "isobaric",
        "depth",
        "height",
        "altitude",
        "z",
        "pfull",
        "deptht",
    ),
    "member": ("member", "ensemble", "ensemble_member", "realization", "number", "ens"),
}


def map(
    result: Any,
    mode: int | Sequence[int] = 1,
    *,
    kind: str | None = None,
    variable: str | None = None,
    level: Any = None,
    lag: Any = None,
    member: Any = None,
    at: Mapping[str, Any] | None = None,
    view: str | None = None,
    certainty: Any = None,
    ax: Axes | None = None,
) -> Axes:
    """A mode as a map over latitude and longitude, or several modes as a sheet of maps.

    result : a fitted estimator or a Decomposition of features on a grid; a model of two views; or
        what ``oscillation_patterns`` or ``persistent_patterns`` returned.
    mode : its number, from 1, or several.
    kind : "eof" (None) the unit vectors, "correlation" of the PC with the data, "covariance" with
        the PC of unit variance, in the units of the data. Of two views correlations with the scores
        of the same view, "homogeneous" (None), or of the other one, "heterogeneous"; or "weights".
        Of complex modes and POPs "amplitude" (None) or "phase".
    variable : which one, of a fit of several; None takes the first.
    level, lag, member : value of that further dimension of the features.  at : of any others,
        ``{"depth": 10.0}``.
    view : "x" (None) or "y" of a model of two views.
    certainty : what :func:`streampca.bootstrap` returned: colours are pale where a loading does not
        differ from 0 by two standard errors of the sample.

    Colours diverge from 0, and the sheet has one scale. Features without observation (land) are
    grey. Where cartopy is installed and has coastlines on this machine, they are drawn; nothing is
    ever downloaded. Two dimensions that are not latitude and longitude are drawn as a picture.
    Returns the Axes; of a sheet its frame: ``ax.child_axes`` are the maps, and the colourbar.
    Raises InvalidInputError, InvalidTypeError, NotFittedError; MissingDependencyError.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from streampca import PCA, plots
    >>> field = np.random.default_rng(0).normal(size=(30, 3, 4))
    >>> coords = {'lat': [0.0, 10, 20], 'lon': [0.0, 5, 10, 15]}
    >>> sst = xr.DataArray(field, coords, ('time', 'lat', 'lon'), 'sst')
    >>> plots.map(PCA(2).fit(sst, dim='time'), 1, kind='correlation')
    <Axes: ...>
    """
    shown = presented(result, view)
    indices = indices_of(mode, shown)
    kind, field_map = _map_of(shown, kind)
    chosen = {"level": level, "lag": lag, "member": member, **(at or {})}
    known = {name: value for name, value in chosen.items() if value is not None}
    grid, where, place = _grid_of(shown, variable, known)
    fields = field_map.values(indices)[:, where]
    pale = _pale(shown, certainty, indices)[:, where]
    limits, colours = _scale(fields, kind)
    panels: list[Axes] = []
    if len(indices) == 1:
        drawn = drawing_axes(ax, _size(grid))
    else:
        size, gap = _panel(grid, len(indices))
        drawn, panels = sheet(ax, len(indices), size, COLUMNS, gap)
    for index, field, own, panel in zip(indices, fields, pale, panels or [drawn], strict=True):
        image = _draw_field(drawing_axes(panel, (1, 1)), grid, grid.field(field), limits, colours)
        if own.any():
            _draw_pale(panel, grid, grid.field(np.where(own & ~np.isnan(field), 1.0, np.nan)))
        if panels:
            name = shown.name(index, _called(shown, kind))
            panel.set_title(name, loc="left", fontsize="small", color=INK)
    _draw_bar(drawn, image, field_map.meaning(variable))
    title = _title(shown, indices, fields[0], kind, [one for one in (variable, place) if one])
    title += "; pale: does not differ from 0" * (certainty is not None)
    state(drawn, title, 20.0 if panels else 6.0)
    return drawn


def _map_of(shown: Presentation, kind: str | None) -> tuple[str, FeatureMap]:
    """The kind of the map, by default the first one, and what it shows."""
    if not shown.maps:
        raise InvalidInputError(f"a {shown.method} has no maps; draw {shown.pictures}")
    kind = next(iter(shown.maps)) if kind is None else kind
    if kind not in shown.maps:
        raise InvalidInputError(f"kind={kind!r}; expected one of {tuple(shown.maps)}")
    return kind, shown.maps[kind]


def _called(shown: Presentation, kind: str) -> str | None:
    """What a component is called on its map; None: by its own name."""
    return "EOF" if kind == "eof" and shown.component == "PC" else None


def _pale(shown: Presentation, certainty: Any, indices: list[int]) -> Array:
    """(components, p) True where a loading does not differ from 0. Raises InvalidInputError."""
    if certainty is None:
        return np.zeros((len(indices), shown.n_features), np.bool_)
    errors = component_errors(shown, certainty, indices)
    return np.asarray(np.abs(shown.components[indices]) <= NORMAL_95 * errors)


def _draw_pale(ax: Axes, grid: Grid, where: Array) -> None:
    """White over the cells with a number."""
    from matplotlib.colors import ListedColormap

    x, y, values = _eastwards(grid, where)
    veil: dict[str, Any] = {"cmap": ListedColormap(["white"]), "alpha": 0.65, "shading": "nearest"}
    ax.pcolormesh(x, y, np.ma.masked_invalid(values), rasterized=True, linewidth=0, **veil)


def _scale(fields: Array, kind: str) -> tuple[tuple[float, float], str]:
    """(limits, colours) of all maps of a sheet."""
    if kind == "phase":
        return (-180.0, 180.0), "twilight_shifted"
    reach = float(np.nanmax(np.abs(fields), initial=0.0)) or 1.0
    return ((0.0, reach), "viridis") if kind == "amplitude" else ((-reach, reach), "RdBu_r")


def _draw_bar(ax: Axes, image: Any, meaning: str) -> None:
    """The colours with their meaning, in lines that are no longer than the picture is high."""
    bar: Any = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0.1, 0.02, 0.8)))
    figure: Any = ax.figure
    high = figure.get_size_inches()[1] * ax.get_position().height
    lines = textwrap.wrap(meaning, max(20, int(12 * high)))
    text = "\n".join([*lines[:2], *(["..."] if len(lines) > 2 else [])])
    style_bar(bar, text, fontsize="small")


def _grid_of(
    shown: Presentation, variable: str | None, chosen: Mapping[str, Any]
) -> tuple[Grid, Array, str]:
    """(the grid of a variable, the numbers of its features, what was chosen in words).

    Raises InvalidInputError.
    """
    axis, first = shown.labels.features, 0
    if axis.parts:
        name = next(iter(axis.parts)) if variable is None else variable
        if name not in axis.parts:
            raise InvalidInputError(f"variable={variable!r}; expected one of {[*axis.parts]}")
        axis, first = axis.parts[name], axis.slices[name].start
    axis, numbers, place = _at(axis, chosen)
    grid = grid_of(axis)
    if grid is None:
        long = [d for d, size in zip(axis.dims, axis.sizes, strict=True) if size > 1]
        if len(long) > 2:
            raise InvalidInputError(_more_dimensions(axis, long))
        raise InvalidInputError(
            f"the features ({', '.join(axis.dims)}) lie on no grid of two dimensions; expected "
            "latitude and longitude, as a fit of an xarray.DataArray or a NetCDF file has them. "
            "plots.loadings(model) shows the largest loadings of any features"
        )
    return grid, first + numbers, place


def _more_dimensions(axis: AxisLabels, long: list[str]) -> str:
    """What to choose where features have more than two dimensions."""
    rest = [d for d in long if _argument(d) is None]
    places = [name for name in (latitude(axis), longitude(axis)) if name is not None]
    of_map = {d for one in places for d in (axis.grids[one][0] if one in axis.grids else (one,))}
    further = [d for d in long if d not in (of_map if len(of_map) == 2 else rest[-2:])]
    lines = []
    for dim in further:
        values = np.asarray(axis.coords.get(dim, np.arange(axis.sizes[axis.dims.index(dim)])))
        shown = ", ".join(str(value) for value in values[:4].tolist())
        named = _argument(dim)
        first = repr(values[0].item()) if hasattr(values[0], "item") else repr(values[0])
        how = f"{named}={first}" if named else f"at={{{dim!r}: {first}}}"
        lines.append(f"{how} ({dim}: {shown}{', ...' if len(values) > 4 else ''})")
    return (
        f"the features have the dimensions {', '.join(long)}; a map has two. Choose "
        + " and ".join(lines)
    )


def _argument(dim: str) -> str | None:
    """The argument that takes a value of this dimension."""
    return next((name for name, dims in EXTRA.items() if dim.lower() in dims), None)


def _at(axis: AxisLabels, chosen: Mapping[str, Any]) -> tuple[AxisLabels, Array, str]:
    """(labels, numbers, in words) of the features at chosen values of some dimensions."""
    numbers, words = np.arange(len(axis)).reshape(axis.sizes), []
    for name, value in chosen.items():
        known = [d for d in axis.dims if d == name or d.lower() in EXTRA.get(name, ())]
        if not known:
            raise InvalidInputError(
                f"{name}={value!r}: the features have the dimensions {', '.join(axis.dims)}; "
                "leave it out"
            )
        dim = known[0]
        d = axis.dims.index(dim)
        values = np.asarray(axis.coords.get(dim, np.arange(axis.sizes[d])))
        same = np.flatnonzero(values == value)
        if not len(same):
            shown = ", ".join(str(one) for one in values[:12].tolist())
            raise InvalidInputError(f"{name}={value!r}; {dim} has {shown}")
        numbers = np.take(numbers, [int(same[0])], axis=d)
        words.append(f"{dim} {value}")
        axis = replace(
            axis,
            sizes=(*axis.sizes[:d], 1, *axis.sizes[d + 1 :]),
            coords={**axis.coords, dim: values[same[:1]]},
            grids={k: v for k, v in axis.grids.items() if dim not in v[0]},
        )
    return axis, numbers.reshape(-1), ", ".join(words)


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


def _draw_field(
    ax: Axes, grid: Grid, values: Array, limits: tuple[float, float], colours: str
) -> Any:
    """One field, with the coordinates and the coastlines of a globe. Returns the image."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    x, y, values = _eastwards(grid, values)
    low, high = limits
    image = ax.pcolormesh(
        x,
        y,
        np.ma.masked_invalid(values),
        cmap=colormaps[colours],
        vmin=low,
        vmax=high,
        shading="nearest",
        rasterized=True,
    )
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
    extent = ax.get_xlim(), ax.get_ylim()
    _draw_coastlines(ax, float(np.nanmax(x)) > 180)
    ax.set_xlim(*extent[0])
    ax.set_ylim(*extent[1])
    for axis, values in ((ax.xaxis, grid.x), (ax.yaxis, grid.y)):
        steps = [1, 3, 6, 10] if np.ptp(values) > 60 else [1, 2, 5, 10]  # 30 or 60 degrees
        axis.set_major_locator(MaxNLocator(7, steps=steps))
    ax.xaxis.set_major_formatter(_east)
    ax.yaxis.set_major_formatter(_north)
    return image


def _eastwards(grid: Grid, values: Array) -> tuple[Array, Array, Array]:
    """x, y and values from west to east, also across the meridian where the grid begins."""
    x = grid.x
    if not grid.globe or x.ndim != 1:
        return x, grid.y, values
    order = np.argsort(x, kind="stable")
    return x[order], grid.y, values[:, order]


def _east(degrees: float, _: float = 0.0) -> str:
    turned = round((degrees + 180) % 360 - 180, 6) + 0.0
    return _degrees(turned, "W", "E") if abs(turned) not in (0, 180) else f"{abs(turned):g}°"


def _north(degrees: float, _: float = 0.0) -> str:
    degrees = round(degrees, 6)
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


def _title(
    shown: Presentation, indices: list[int], field: Array, kind: str, places: list[str]
) -> str:
    eofs = _called(shown, kind) is not None
    of = "".join(f", {one}" for one in ([] if eofs else [f"{kind} map"]) + places)
    if len(indices) > 1:
        what = f"{len(indices)} {'EOFs' if eofs else shown.plural}"
        return f"{what}{of}: {shown.carries(indices)}".rstrip(": ")
    gone = int(np.isnan(field).sum())
    land = f"; {gone:,} cells without observation are grey" if gone else ""
    return f"{shown.name(indices[0], _called(shown, kind))}{of}{land}"
