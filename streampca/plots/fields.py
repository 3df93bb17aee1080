"""One field over latitude and longitude, or over two other dimensions: cells, coasts, degrees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError, MissingDependencyError
from streampca.matrix.places import Grid
from streampca.plots.canvas import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = np.ndarray[Any, Any]
LAND = "#d9d9d9"  # features without observation


def map_size(grid: Grid) -> tuple[float, float]:
    """Inches of a map with a colourbar."""
    rows, columns = (np.ptp(grid.y), np.ptp(grid.x)) if grid.globe else grid.shape
    return 6.4, float(np.clip(5.4 * rows / (columns or 1) + 0.9, 2.6, 7.0))


def panel_size(
    grid: Grid, count: int, columns: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Inches of a panel of a sheet that its map fills, and the gaps between panels, as shares."""
    columns = min(count, columns)
    rows = -(-count // columns)
    width = 3.9 * columns / (columns + 0.2 * (columns - 1))
    y, x = (np.ptp(grid.y), np.ptp(grid.x)) if grid.globe else grid.shape
    height = float(np.clip(width * aspect(grid) * y / (x or 1), 0.8, 4.0))
    gap = 0.6 / height  # for a title and the numbers of an axis
    inches = (height * (rows + (rows - 1) * gap) / 0.86 - 0.4) / rows
    return (5.0, inches), (0.2, gap)


def aspect(grid: Grid) -> float:
    """How much longer a degree of latitude is drawn than one of longitude."""
    if not grid.globe or np.ptp(grid.y) >= 120:
        return 1.0
    middle = np.deg2rad(float(np.nanmean(grid.y)))
    return float(min(1.0 / max(np.cos(middle), 0.25), 2.0))


def projection_of(wanted: Any, grid: Grid) -> Any:
    """A projection of cartopy, None for degrees along both axes.  wanted : one, or its name.

    Raises InvalidInputError, MissingDependencyError.
    """
    if wanted is None:
        return None
    try:
        from cartopy import crs
    except ImportError as error:
        raise MissingDependencyError(
            f"projections need cartopy ({error}). Install it: pip install cartopy"
        ) from error
    if not grid.globe:
        raise InvalidInputError(
            f"projection={wanted!r}: the features lie on no latitudes and longitudes; leave it out"
        )
    if isinstance(wanted, crs.Projection):
        return wanted
    kind = getattr(crs, wanted, None) if isinstance(wanted, str) else None
    if not (isinstance(kind, type) and issubclass(kind, crs.Projection)):
        raise InvalidInputError(
            f"projection={wanted!r}; expected the name of one of cartopy's, such as 'Robinson', "
            "'PlateCarree' or 'NorthPolarStereo', or cartopy.crs.Robinson(central_longitude=180)"
        )
    middle = float(np.round((np.nanmin(grid.x) + np.nanmax(grid.x)) / 2))
    try:
        return kind(central_longitude=middle)
    except TypeError:
        return kind()


def draw_field(
    ax: Axes, grid: Grid, values: Array, limits: tuple[float, float], colours: str, coasts: bool
) -> Any:
    """One field, with the coordinates and the coastlines of a globe. Returns the image."""
    from matplotlib import colormaps

    image = _mesh(ax, grid, values, cmap=colormaps[colours], vmin=limits[0], vmax=limits[1])
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
    if (flat := _projected(ax)) is not None:
        geographic: Any = ax
        labels = {"bottom": "x", "left": "y"}
        lines = geographic.gridlines(
            draw_labels=labels, x_inline=False, y_inline=False, color=MUTED, linewidth=0.4
        )
        lines.rotate_labels = False
        lines.xlabel_style = lines.ylabel_style = {"size": "x-small", "color": INK}
        for shape in _coastlines() if coasts else ():
            geographic.add_geometries([shape], flat, facecolor="none", edgecolor=INK, linewidth=0.6)
        return image
    ax.set_aspect(aspect(grid))
    if coasts:
        _draw_coastlines(ax, float(np.nanmax(grid.x)) > 180)
    _mark_degrees(ax, grid)
    return image


def _mark_degrees(ax: Axes, grid: Grid) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis, values in ((ax.xaxis, grid.x), (ax.yaxis, grid.y)):
        steps = [1, 3, 6, 10] if np.ptp(values) > 60 else [1, 2, 5, 10]  # 30 or 60 degrees
        axis.set_major_locator(MaxNLocator(7, steps=steps))
    ax.xaxis.set_major_formatter(east)
    ax.yaxis.set_major_formatter(north)


def _projected(ax: Axes) -> Any:
    """The coordinates of longitudes and latitudes, on Axes of cartopy; else None."""
    if not hasattr(ax, "projection"):
        return None
    from cartopy import crs

    return crs.PlateCarree()


def _mesh(ax: Axes, grid: Grid, values: Array, **look: Any) -> Any:
    """The cells of a field, those without a number left out."""
    x, y, values = _eastwards(grid, values)
    if (flat := _projected(ax)) is not None:
        look["transform"] = flat
    values = np.ma.masked_invalid(values)
    return ax.pcolormesh(x, y, values, shading="nearest", rasterized=True, **look)


def _eastwards(grid: Grid, values: Array) -> tuple[Array, Array, Array]:
    """x, y and values from west to east, also across the meridian where the grid begins."""
    x = grid.x
    if not grid.globe or x.ndim != 1:
        return x, grid.y, values
    order = np.argsort(x, kind="stable")
    return x[order], grid.y, values[:, order]


def east(degrees: float, _: float = 0.0) -> str:
    turned = round((degrees + 180) % 360 - 180, 6) + 0.0
    return _degrees(turned, "W", "E") if abs(turned) not in (0, 180) else f"{abs(turned):g}°"


def north(degrees: float, _: float = 0.0) -> str:
    degrees = round(degrees, 6)
    return _degrees(degrees, "S", "N") if degrees else "0°"


def _degrees(value: float, below: str, above: str) -> str:
    return f"{abs(value):g}°{below if value < 0 else above}"


def _draw_coastlines(ax: Axes, eastward: bool) -> None:
    """Coastlines of this machine.  eastward : longitudes run from 0 to 360."""
    from matplotlib.collections import LineCollection

    lines: list[Array] = []
    for shape in _coastlines():
        for part in getattr(shape, "geoms", [shape]):
            line = np.asarray(part.coords)[:, :2]
            lines += [line, line + np.array([360.0, 0.0])] if eastward else [line]
    if lines:
        extent = ax.get_xlim(), ax.get_ylim()
        ax.add_collection(LineCollection(lines, colors=INK, linewidths=0.6), autolim=False)
        ax.set_xlim(*extent[0])
        ax.set_ylim(*extent[1])


def coastlines_there(wanted: bool | None) -> bool:
    """Whether to draw coastlines.  wanted : None draws those that lie on this machine.

    Raises MissingDependencyError where True asks for what is not there.
    """
    if wanted and not _coastline_files():
        raise MissingDependencyError(
            "coastlines=True: there are none on this machine, and pictures download nothing. "
            "Fetch them once, where the network may be used: pip install cartopy && "
            "cartopy_feature_download physical"
        )
    return wanted is not False


def _coastlines() -> list[Any]:
    """Shapes of the coastlines, if they lie on this machine."""
    files = _coastline_files()
    if not files:
        return []
    from cartopy.io import shapereader

    return list(shapereader.Reader(files[0]).geometries())


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


def draw_pale(ax: Axes, grid: Grid, where: Array) -> None:
    """White over the cells with a number."""
    from matplotlib.colors import ListedColormap

    _mesh(ax, grid, where, cmap=ListedColormap(["white"]), alpha=0.65, linewidth=0)
