"""A field over longitude (or latitude) and time, averaged over the other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.matrix import AxisLabels
from streampca.matrix.places import latitude, longitude
from streampca.plots.canvas import drawing_axes, state, style_bar
from streampca.plots.fields import LAND, east, north
from streampca.plots.series import year

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
AVERAGES = {"longitude": "latitude", "latitude": "longitude"}


def hovmoeller(
    field: Any,
    along: str = "longitude",
    *,
    between: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A field in time: what travels is a slanted stripe.

    field : DataArray of time, latitude and longitude, such as ``pca.reconstruct([1, 2],
        mean=False)``, ``modes.reconstruct(...)`` or anomalies.
    along : "longitude", with time upwards, or "latitude", with time to the right.
    between : the other coordinate that is averaged, from and to in its units; None takes all.
        Latitudes count by the cosine. Cells without a value do not count.

    Colours diverge from 0.
    Returns the Axes. Raises InvalidInputError, InvalidTypeError; MissingDependencyError.
    Source: Hovmoeller 1949, "The trough-and-ridge diagram", Tellus 1.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from streampca import plots
    >>> lon, t = np.arange(0, 360, 10.0), np.arange(24.0)
    >>> wave = np.cos(np.deg2rad(lon)[:, None] - t / 4) * np.ones((3, 1, 1))
    >>> coords = {'lat': [-5.0, 0, 5], 'lon': lon, 'time': t}
    >>> plots.hovmoeller(xr.DataArray(wave, coords, ('lat', 'lon', 'time'), 'sst'))
    <Axes: ...>
    """
    if along not in AVERAGES:
        raise InvalidInputError(f"along={along!r}; expected one of {(*AVERAGES,)}")
    from matplotlib.ticker import MaxNLocator

    names = _dims(field)
    place, gone, when = names[along], names[AVERAGES[along]], names["time"]
    values = _averaged(field, gone, AVERAGES[along] == "latitude", between)
    values = values.sortby(place).transpose(when, place)
    times, dated = _times(values, when)
    drawn = drawing_axes(ax, (5.0, 6.0) if along == "longitude" else (8.0, 3.6))
    reach = float(np.nanmax(np.abs(values.values), initial=0.0)) or 1.0
    look: Any = {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach, "shading": "nearest"}
    table = np.ma.masked_invalid(values.values)
    x, y = np.asarray(values[place], np.float64), times
    if along == "latitude":
        x, y, table = y, x, table.T
    image = drawn.pcolormesh(x, y, table, rasterized=True, **look)
    drawn.set_facecolor(LAND)
    over, time = (drawn.xaxis, drawn.yaxis) if along == "longitude" else (drawn.yaxis, drawn.xaxis)
    over.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 6, 10]))
    over.set_major_formatter(east if along == "longitude" else north)
    if dated:
        time.axis_date()
    else:
        time.set_major_locator(MaxNLocator(8, integer=True))
        time.set_label_text(when)
    style_bar(drawn.figure.colorbar(image, ax=drawn, shrink=0.8), _meaning(field))
    state(drawn, _title(field, gone, between))
    return drawn


def _dims(field: Any) -> dict[str, str]:
    """The names of latitude, longitude and time. Raises InvalidInputError, InvalidTypeError."""
    if not hasattr(field, "dims") or hasattr(field, "data_vars"):
        raise InvalidTypeError(
            f"got a {type(field).__name__}; expected a DataArray of time, latitude and longitude: "
            "pca.reconstruct([1, 2], mean=False)"
        )
    dims = tuple(str(dim) for dim in field.dims)
    coords = {d: np.asarray(field[d].values) for d in dims if d in field.coords}
    attrs = {d: dict(field[d].attrs) for d in coords}
    axis = AxisLabels(dims, tuple(field.shape), coords, attrs)
    lat, lon = latitude(axis), longitude(axis)
    rest = [d for d in dims if d not in (lat, lon)]
    if lat is None or lon is None or len(rest) != 1:
        raise InvalidInputError(
            f"the field has the dimensions {', '.join(dims)}; expected time, latitude and "
            f"longitude. Choose a value of others: field.sel({(rest or ['level'])[0]}=...)"
        )
    return {"latitude": lat, "longitude": lon, "time": rest[0]}


def _averaged(field: Any, dim: str, weighted: bool, between: tuple[float, float] | None) -> Any:
    """The mean over a dimension. Raises InvalidInputError where nothing lies between."""
    if between is not None:
        inside = (field[dim] >= min(between)) & (field[dim] <= max(between))
        if not bool(inside.any()):
            raise InvalidInputError(
                f"between={between}: {dim} runs from {float(field[dim].min()):g} to "
                f"{float(field[dim].max()):g}"
            )
        field = field.isel({dim: np.flatnonzero(inside.values)})
    if not weighted:
        return field.mean(dim)
    return field.weighted(np.cos(np.deg2rad(field[dim])).clip(0.0)).mean(dim)


def _times(values: Any, when: str) -> tuple[Array, bool]:
    """Numbers along time, and whether they are dates of Matplotlib."""
    from matplotlib.dates import date2num

    known = np.asarray(values[when].values) if when in values.coords else np.arange(len(values))
    if known.dtype.kind == "M":
        return np.asarray(date2num(known)), True
    if known.dtype.kind == "O":
        return np.array([year(one) for one in known]), False
    return known, False


def _meaning(field: Any) -> str:
    name = str(field.attrs.get("long_name", field.name or ""))
    units = field.attrs.get("units")
    return f"{name} ({units})" if units else name


def _title(field: Any, dim: str, between: tuple[float, float] | None) -> str:
    write = north if dim == _dims(field)["latitude"] else east
    ends = between or (float(field[dim].min()), float(field[dim].max()))
    return f"Mean from {write(min(ends))} to {write(max(ends))}"
