"""Maps of modes over latitude and longitude."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import AxisLabels
from streampca.matrix.places import Grid, grid_of, latitude, longitude
from streampca.plots.canvas import INK, NORMAL_95, drawing_axes, pyplot, sheet, state, style_bar
from streampca.plots.fields import (
    coastlines_there,
    draw_field,
    draw_pale,
    map_size,
    panel_size,
    projection_of,
)
from streampca.plots.presented import component_errors, indices_of, presented
from streampca.report.presentation import FeatureMap, Presentation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
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
    projection: Any = None,
    coastlines: bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A mode as a map over latitude and longitude, or a sheet of maps: of modes, lags, levels.

    result : a fitted estimator or a Decomposition of features on a grid; a model of two views; what
        ``oscillation_patterns`` or ``persistent_patterns`` returned; or ``correlation_maps``, where
        colours are pale unless they are significant at a false discovery rate of 10 %.
    mode : its number, from 1, or several.
    kind : "eof" (None) the unit vectors, "correlation" of the PC with the data, "covariance" with
        the PC of unit variance, in the units of the data. Of two views correlations with the scores
        of the same view, "homogeneous" (None), or of the other one, "heterogeneous"; or "weights".
        Of complex modes and POPs "amplitude" (None) or "phase".
    variable : which one, of a fit of several; None takes the first.
    level, lag, member : value of that further dimension of the features, or several: a map each.
    at : of any others, ``{"depth": 10.0}`` or ``{"depth": [0, 50]}``.
    view : "x" (None) or "y" of a model of two views.
    certainty : what :func:`streampca.bootstrap` returned: colours are pale where a loading does not
        differ from 0 by two standard errors of the sample.
    projection : one of cartopy's, or its name, such as "Robinson"; None draws degrees.
    coastlines : None draws those that cartopy has on this machine, True refuses where there are
        none, False draws none. Nothing is ever downloaded.

    Colours diverge from 0, and the sheet has one scale. Features without observation (land) are
    grey. Two dimensions that are not latitude and longitude are drawn as a picture.
    Returns the Axes; of a sheet its frame: ``ax.child_axes`` are the maps, and the colourbar; with
    a projection maps are in ``ax.figure.axes``.
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
    places = _places({"level": level, "lag": lag, "member": member, **(at or {})})
    grids = [_grid_of(shown, variable, place) for place in places]
    grid = grids[0][0]
    table, pale = field_map.values(indices), _pale(shown, certainty, indices)
    cells = [(i, j) for i in range(len(indices)) for j in range(len(places))]
    fields = np.stack([table[i, grids[j][1]] for i, j in cells])
    limits, colours = _scale(fields, kind)
    drawn, panels = _axes(ax, grid, len(cells), projection_of(projection, grid))
    coasts = coastlines_there(coastlines)
    for (i, j), field, panel in zip(cells, fields, panels, strict=True):
        styled = drawing_axes(panel, (1, 1))
        image = draw_field(styled, grid, grid.field(field), limits, colours, coasts)
        own = pale[i, grids[j][1]]
        if own.any():
            draw_pale(panel, grid, grid.field(np.where(own & ~np.isnan(field), 1.0, np.nan)))
        if len(cells) > 1:
            names = [grids[j][2]] if len(places) > 1 else []
            if len(indices) > 1 or not names:
                names = [shown.name(indices[i], _called(shown, kind)), *names]
            panel.set_title(", ".join(names), loc="left", fontsize="small", color=INK)
    _draw_bar(drawn, image, field_map.meaning(variable))
    shared = [grids[0][2]] if len(places) == 1 else [f"{len(places)} {_varying(places)}"]
    title = _title(shown, indices, fields, kind, [one for one in (variable, *shared) if one])
    if shown.insignificant is not None:
        title += "; pale: not significant"
    title += "; pale: does not differ from 0" * (certainty is not None)
    state(drawn, title, 20.0 if len(cells) > 1 else 6.0)
    return drawn


def _places(wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the values that were asked for along further dimensions."""
    known = {name: value for name, value in wanted.items() if value is not None}
    each = [[value] if np.ndim(value) == 0 else list(value) for value in known.values()]
    return [dict(zip(known, values, strict=True)) for values in product(*each)]


def _varying(places: list[dict[str, Any]]) -> str:
    """What differs between the maps of a mode."""
    names = [name for name in places[0] if len({place[name] for place in places}) > 1]
    return " x ".join(f"{name}s" for name in names) or "maps"


def _axes(ax: Any, grid: Grid, count: int, projection: Any) -> tuple[Axes, list[Axes]]:
    """(the frame of a sheet, its panels), or one Axes that is both. Raises InvalidTypeError."""
    if count > 1:
        size, gap = panel_size(grid, count, COLUMNS)
        return sheet(ax, count, size, COLUMNS, gap, projection)
    if projection is not None and ax is not None:
        raise InvalidTypeError(
            "ax has its own projection; leave projection= out and make it so: "
            "plt.subplots(subplot_kw={'projection': cartopy.crs.Robinson()})"
        )
    if projection is not None:
        figure = pyplot().figure(figsize=map_size(grid))
        ax = figure.add_axes((0.1, 0.14, 0.7, 0.72), projection=projection)
    drawn = drawing_axes(ax, map_size(grid))
    return drawn, [drawn]


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
    """(components, p) True where a map does not differ from 0. Raises InvalidInputError."""
    if shown.insignificant is not None and certainty is None:
        return shown.insignificant[indices]
    if certainty is None:
        return np.zeros((len(indices), shown.n_features), np.bool_)
    errors = component_errors(shown, certainty, indices)
    return np.asarray(np.abs(shown.components[indices]) <= NORMAL_95 * errors)


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


def _title(
    shown: Presentation, indices: list[int], fields: Array, kind: str, places: list[str]
) -> str:
    eofs = _called(shown, kind) is not None
    of = "".join(f", {one}" for one in ([] if eofs else [f"{kind} map"]) + places)
    if len(indices) > 1:
        what = f"{len(indices)} {'EOFs' if eofs else shown.plural}"
        return f"{what}{of}: {shown.carries(indices)}".rstrip(": ")
    gone = int(np.isnan(fields[0]).sum())
    land = f"; {gone:,} cells without observation are grey" if gone else ""
    return f"{shown.name(indices[0], _called(shown, kind))}{of}{land}"
