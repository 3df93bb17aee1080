"""The static figures of a report, each with a description and a small table."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import StreamPCAError
from streampca.html import table, text
from streampca.matrix.places import Grid, genome_of, grid_of
from streampca.report.presentation import Presentation, Sweeps

SHOWN = 50  # components
MODES = 4  # with a map or a genome each
NAMED = 12  # features by name


def _figure(inside: str, caption: str, head: Sequence[str], rows: Sequence[Any]) -> str:
    return (
        f"<figure>{inside}<figcaption>{text(caption)}</figcaption><details><summary>as a table"
        f'</summary><div class="wide">{table(head, rows)}</div></details></figure>'
    )


def spectrum_figure(shown: Presentation) -> str:
    """Variances of the components; empty for a kind without them."""
    if shown.variances is None or shown.shares is None or not np.any(shown.variances > 0):
        return ""
    values, shares = shown.variances[:SHOWN], shown.shares[:SHOWN]
    sure, noise = shown.certainty, shown.noise_variance
    certain = np.ones(len(values), np.bool_) if sure is None else sure.determined[:SHOWN]
    alt = (
        f"Variance of {len(values)} components on a logarithmic axis, from {values[0]:.3g} to "
        f"{values[-1]:.3g}; the noise variance is {noise:.3g}."
    )
    numbers = zip(values, shares, np.cumsum(shares), strict=True)
    rows = [
        (i, f"{value:.6g}", f"{share:.2%}", f"{total:.2%}")
        for i, (value, share, total) in enumerate(numbers, 1)
    ]
    hollow = "" if certain.all() else "Hollow points: the direction is not determined. "
    dashed = "Dashed: the mean variance left out." if noise > 0 else ""
    caption = f"Points: the variance of each component. {hollow}{dashed}".strip()
    drawn = bars(values, certain, noise, alt, "Variance")
    return _figure(drawn, caption, ("component", "variance", "share", "cumulative"), rows)


def feature_figures(shown: Presentation) -> str:
    """Maps, loadings along the genome, or the largest loadings by name."""
    if shown.components_of is None:
        return ""
    try:
        count = min(MODES, len(shown.components))
    except StreamPCAError as error:  # a fit without them, or streamed to a place that is not here
        return f'<p class="soft">{text(error)}</p>'
    axis = shown.labels.features
    grid, genome = grid_of(axis), genome_of(axis)
    if grid is not None:
        return "".join(_map(shown, j, grid) for j in range(count))
    if genome is not None:
        return "".join(_along(shown, j, genome) for j in range(count))
    every = "".join(_largest(shown, j) for j in range(count))
    return f'<div class="beside">{every}</div>'


def _top(shown: Presentation, j: int) -> list[tuple[str, str]]:
    """The features with the largest loadings, and these."""
    values = shown.loadings(j)
    order = np.argsort(-np.abs(values), kind="stable")[:NAMED]
    names = shown.labels.features.shown(order.tolist())
    return [(name, f"{values[i] + 0.0:+.4g}") for name, i in zip(names, order, strict=True)]


def _map(shown: Presentation, j: int, grid: Any) -> str:
    (values,) = next(iter(shown.maps.values())).values([j])
    alt = f"Map of mode {j + 1}, which carries {shown.carries([j])}."
    image = field_image(grid.field(values), grid, alt)
    return _figure(image, alt, ("largest loadings", "loading"), _top(shown, j))


def _along(shown: Presentation, j: int, genome: Any) -> str:
    values, pc = np.abs(shown.loadings(j)), shown.short_name(j)
    name = shown.labels.features.name(int(np.argmax(values)))
    alt = (
        f"Largest |loading| on {pc} in each stretch of the genome, {len(genome.names)} "
        f"chromosomes; the highest is {name}."
    )
    drawn = genome_points(genome, values, alt, f"|loading| on {pc}")
    return _figure(drawn, alt, ("largest loadings", "loading"), _top(shown, j))


def _largest(shown: Presentation, j: int) -> str:
    """Bars of the largest loadings, by name: a table that is a figure."""
    top = _top(shown, j)
    most = max((abs(float(value)) for _, value in top), default=0.0) or 1.0
    body = ""
    for name, value in top:
        width = 200 * abs(float(value)) / most
        colour = "var(--blue)" if float(value) >= 0 else "var(--orange)"
        body += (
            f"<tr><th scope=row>{text(name)}</th><td class=number>{text(value)}</td><td>"
            f'<svg width="202" height="12" aria-hidden="true">'
            f'<rect width="{width:.1f}" height="12" '
            f'fill="{colour}"/></svg></td></tr>'
        )
    caption = f"Largest loadings on {shown.short_name(j)} ({shown.carries([j])})"
    inside = f'<div class="wide"><table>{body}</table></div>'
    return f"<figure><figcaption>{text(caption)}</figcaption>{inside}</figure>"


def sweep_figure(sweeps: Sweeps | None) -> str:
    """The objective of a completion by sweeps, with the held-out error; empty for other fits."""
    if sweeps is None or not sweeps.shares:
        return ""
    series, many = sweeps.shares, len(sweeps.numbers)
    alt = f"Objective of the completion after each of {many} sweeps, as a share of the first."
    rows = [(i + 1, *(f"{one[i]:.4g}" for one in series.values())) for i in range(many)]
    drawn = lines(series, alt, "Sweep", "Share of the first value", log=True)
    return _figure(drawn, alt, ("sweep", *series), rows)


Array = np.ndarray[Any, Any]
WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 10, 34
BLUE, ORANGE, GREY = "var(--blue)", "var(--orange)", "var(--grey)"


@dataclass(frozen=True)
class Frame:
    """A figure with axes. x and y run between limits; y may be logarithmic."""

    x: tuple[float, float]
    y: tuple[float, float]
    xlabel: str
    ylabel: str
    log: bool = False

    def across(self, values: Any) -> Array:
        """Pixels of x."""
        share = (np.asarray(values, dtype=np.float64) - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        return np.asarray(LEFT + share * (WIDTH - LEFT - RIGHT))

    def up(self, values: Any) -> Array:
        """Pixels of y."""
        low, high = self.y
        values = np.asarray(values, dtype=np.float64)
        if self.log:
            low, high, values = np.log10(low), np.log10(high), np.log10(values)
        share = (values - low) / ((high - low) or 1)
        return np.asarray(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM))

    def drawn(self, inside: str, alt: str, xticks: Sequence[tuple[float, str]]) -> str:
        """The whole figure.  alt : what is to be seen, in words.  xticks : (x, name)."""
        marks = "".join(
            f'<text x="{float(self.across(at)):.1f}" y="{HEIGHT - BOTTOM + 15}" '
            f'text-anchor="middle">{text(name)}</text>'
            for at, name in xticks
        )
        for value in ticks(*self.y, log=self.log):
            y = float(self.up(value))
            marks += (
                f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
            )
        marks += (
            f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 3}" text-anchor="middle">'
            f"{text(self.xlabel)}</text>"
            f'<text transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
            f"{text(self.ylabel)}</text>"
        )
        return (
            f'<svg class="figure" role="img" viewBox="0 0 {WIDTH} {HEIGHT}">'
            f"<title>{text(alt)}</title>{marks}{inside}</svg>"
        )


def ticks(low: float, high: float, log: bool = False, most: int = 6) -> list[float]:
    """Round numbers between two others."""
    if not (np.isfinite(low) and np.isfinite(high)) or high <= low:
        return []
    if log:
        first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
        subs = (1, 2, 5) if last - first <= 2 else (1,)
        found = [m * 10.0**e for e in range(first, last + 1) for m in subs]
        inside = [one for one in found if low <= one <= high]
        if len(inside) > 1:
            return inside[:: -(-len(inside) // most)]
    rough = (high - low) / most
    unit = 10.0 ** np.floor(np.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough)
    first = np.ceil(low / step)
    count = int(np.floor(high / step - first + 1e-9)) + 1
    return [float(step * (first + i)) + 0.0 for i in range(count)]  # not -0, not 1e-17


def numbered(count: int) -> list[tuple[float, str]]:
    """Ticks of components or sweeps, from 1."""
    step = max(1, -(-count // 12))
    return [(i, str(i)) for i in range(1, count + 1, step)]


def bars(values: Array, certain: Array, noise: float, alt: str, ylabel: str) -> str:
    """Variances as points on stems, on a logarithmic axis; hollow where they are not certain."""
    shown = values[values > 0]
    low = min(float(shown.min()), noise if noise > 0 else np.inf)
    right = len(values) * (1.14 if noise > 0 else 1.0) + 0.6  # room for a name
    frame = Frame(
        (0.4, right), (low / 1.6, float(shown.max()) * 1.3), "Component", ylabel, log=True
    )
    floor, inside = HEIGHT - BOTTOM, []
    for i, value in enumerate(values, 1):
        if value > 0:
            x, y = float(frame.across(i)), float(frame.up(value))
            fill = BLUE if certain[i - 1] else "var(--page)"
            inside.append(
                f'<path d="M{x:.1f} {floor}V{y:.1f}" stroke="{BLUE}" stroke-width="2"/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{BLUE}" '
                f'stroke-width="1.5"/>'
            )
    if noise > 0:
        y = float(frame.up(noise))
        inside.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{ORANGE}" stroke-dasharray="6 4"/>'
            f'<text x="{WIDTH - RIGHT}" y="{y - 4:.1f}" text-anchor="end">noise {noise:.3g}</text>'
        )
    return frame.drawn("".join(inside), alt, numbered(len(values)))


def lines(series: dict[str, Array], alt: str, xlabel: str, ylabel: str, log: bool = False) -> str:
    """Curves over 1, 2, ..., each named at its end."""
    every = np.concatenate([one[np.isfinite(one)] for one in series.values()])
    every = every[every > 0] if log else every
    low, high = float(every.min()), float(every.max())
    rest = max((high / low) ** 0.1, 1.002) if log else 1.0
    room = (low / rest, high * rest) if log else (min(low, 0.0), high * 1.05 or 1.0)
    count = max(map(len, series.values()))
    frame = Frame((0.7, count + 0.3), room, xlabel, ylabel, log)
    inside, ends = [], [float(frame.up(values[-1])) for values in series.values()]
    for (name, values), colour, dash in zip(
        series.items(), (BLUE, ORANGE, GREY), ("", "7 4", "2 3"), strict=False
    ):
        end = float(frame.up(values[-1]))
        below = 20 * any(0 < end - other < 14 for other in ends)
        places = zip(frame.across(np.arange(1, len(values) + 1)), frame.up(values), strict=True)
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        inside.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><text x="{WIDTH - RIGHT}" '
            f'y="{end - 6 + below:.1f}" text-anchor="end">{text(name)}</text>'
        )
    return frame.drawn("".join(inside), alt, numbered(count))


BINS = 1400


def genome_points(genome: Any, values: Array, alt: str, ylabel: str) -> str:
    """The largest of |values| in each of 1400 stretches of a genome, chromosome by chromosome."""
    top = float(values.max(initial=0.0)) or 1.0
    length = float(genome.place.max(initial=1.0))
    frame = Frame((0.0, length), (0.0, 1.05 * top), "Chromosome", ylabel)
    cell = np.minimum((genome.place / length * BINS).astype(np.int64), BINS - 1)
    order = np.lexsort((values, cell))
    last = np.flatnonzero(np.append(np.diff(cell[order]) > 0, True))
    chosen = order[last]
    inside = []
    for parity, colour in enumerate((BLUE, GREY)):
        own = chosen[genome.number[chosen] % 2 == parity]
        places = zip(frame.across(genome.place[own]), frame.up(values[own]), strict=True)
        dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
        inside.append(
            f'<path d="{dots}" stroke="{colour}" stroke-width="3" stroke-linecap="round"/>'
        )
    step = max(1, -(-len(genome.names) // 24))
    named = [(float(c), n) for c, n in zip(genome.centres, genome.names, strict=True)][::step]
    return frame.drawn("".join(inside), alt, named)


# Fields as images.

BAR = 76  # pixels of the scale of colours to the right of a field
MOST_CELLS = 720  # of an image along each side; larger fields are thinned
DIVERGING = ((33, 102, 172), (146, 197, 222), (247, 247, 247), (244, 165, 130), (178, 24, 43))
LAND = (190, 190, 190)


def field_image(values: Array, grid: Grid, alt: str) -> str:
    """A field with NaN over land, in colours that diverge from 0, north upwards.

    values : (rows, columns) of the grid.
    """
    y, x, globe = grid.y, grid.x, grid.globe
    if globe and y.ndim == 1 and y[0] < y[-1]:
        values, y = values[::-1], y[::-1]
    if globe and x.ndim == 1:
        order = np.argsort(x, kind="stable")
        values, x = values[:, order], x[order]
    values = values[:: -(-values.shape[0] // MOST_CELLS), :: -(-values.shape[1] // MOST_CELLS)]
    reach = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    codes = np.where(np.isnan(values), 255, np.rint(127 * (1 + np.nan_to_num(values) / reach)))
    rows, columns = (np.ptp(y), np.ptp(x)) if globe else values.shape
    wide = WIDTH - LEFT - BAR
    high = float(np.clip(wide * rows / (columns or 1), 120, 600))
    inside = _image(codes, LEFT, TOP, wide, high)
    inside += _marks(_sides(x), _sides(y), grid.names, high)
    shades = np.rint(np.linspace(254, 0, 64))[:, None]
    inside += _image(shades, WIDTH - BAR + 14, TOP, 12, high)
    for share, value in ((0.0, reach), (0.5, 0.0), (1.0, -reach)):
        inside += (
            f'<text x="{WIDTH - BAR + 30}" y="{TOP + share * high + 4:.0f}">{value:.2g}</text>'
        )
    holes = '<p class="key">Grey: no observation.</p>' if np.isnan(values).any() else ""
    return (
        f'<svg class="figure" role="img" viewBox="0 0 {WIDTH} {TOP + high + BOTTOM:.0f}">'
        f"<title>{text(alt)}</title>{inside}</svg>{holes}"
    )


def _image(codes: Array, left: float, top: float, wide: float, high: float) -> str:
    data = base64.b64encode(_png(codes.astype(np.uint8), _palette())).decode()
    return (
        f'<image x="{left:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    )


def _sides(places: Array) -> tuple[float, float]:
    """The outer sides of the first and last of a row of cells; none of a curvilinear grid."""
    if places.ndim == 2:
        return 0.0, 0.0
    half = float(places[-1] - places[0]) / max(len(places) - 1, 1) / 2
    return float(places[0]) - half, float(places[-1]) + half


def _marks(
    x: tuple[float, float], y: tuple[float, float], names: tuple[str, str], high: float
) -> str:
    """Numbers and names of the axes.  x : left and right side.  y : upper and lower side."""
    wide, made = WIDTH - LEFT - BAR, ""
    for value in ticks(min(x), max(x)):
        at = LEFT + wide * (value - x[0]) / (x[1] - x[0])
        made += (
            f'<text x="{at:.1f}" y="{TOP + high + 15:.0f}" text-anchor="middle">{value:g}</text>'
        )
    for value in ticks(min(y), max(y), most=5):
        at = TOP + high * (value - y[0]) / (y[1] - y[0])
        made += f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:g}</text>'
    return made + (
        f'<text x="{LEFT + wide / 2:.0f}" y="{TOP + high + 30:.0f}" text-anchor="middle">'
        f'{text(names[1])}</text><text transform="translate(12 {TOP + high / 2:.0f}) rotate(-90)" '
        f'text-anchor="middle">{text(names[0])}</text>'
    )


def _palette() -> bytes:
    stops = np.linspace(0, 254, len(DIVERGING))
    colours = [np.interp(np.arange(255), stops, channel) for channel in np.array(DIVERGING).T]
    return np.vstack([np.stack(colours, 1), LAND]).round().astype(np.uint8).tobytes()


def _png(codes: Array, palette: bytes) -> bytes:
    """A PNG of 256 colours. Source: W3C 2003, "Portable Network Graphics", 2nd ed., section 11."""
    rows, columns = codes.shape
    lines = np.hstack([np.zeros((rows, 1), np.uint8), codes]).tobytes()  # filter 0 before each

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
