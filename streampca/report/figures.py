"""The static figures of a report, each with a description and a small table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streampca.errors import StreamPCAError
from streampca.html import table, text
from streampca.matrix.places import genome_of, grid_of
from streampca.report.svg import bars, field_image, genome_points, lines

SHOWN = 50  # components
MODES = 4  # with a map or a genome each
NAMED = 12  # features by name


def _figure(inside: str, caption: str, head: Sequence[str], rows: Sequence[Any]) -> str:
    return (
        f"<figure>{inside}<figcaption>{text(caption)}</figcaption><details><summary>as a table"
        f'</summary><div class="wide">{table(head, rows)}</div></details></figure>'
    )


def spectrum_figure(result: Any) -> str:
    """Variances of the components; empty for a kind without them."""
    variance = getattr(result, "explained_variance", None)
    if variance is None or not np.any(np.asarray(variance) > 0):
        return ""
    shown, shares = variance[:SHOWN], result.explained_variance_ratio[:SHOWN]
    found = result.certificate
    certain = np.ones(len(shown), np.bool_) if found is None else found.determined[:SHOWN]
    alt = (
        f"Variance of {len(shown)} components on a logarithmic axis, from {shown[0]:.3g} to "
        f"{shown[-1]:.3g}; the noise variance is {result.noise_variance:.3g}."
    )
    numbers = zip(shown, shares, np.cumsum(shares), strict=True)
    rows = [
        (i, f"{value:.6g}", f"{share:.2%}", f"{total:.2%}")
        for i, (value, share, total) in enumerate(numbers, 1)
    ]
    caption = "Hollow points: the direction is not determined. Dashed: the mean variance left out."
    drawn = bars(shown, certain, result.noise_variance, alt, "Variance")
    return _figure(drawn, caption, ("component", "variance", "share", "cumulative"), rows)


def feature_figures(result: Any) -> str:
    """Maps, loadings along the genome, or the largest loadings by name."""
    if getattr(result, "components", None) is None and not getattr(result, "streamed_to", None):
        return ""
    axis = result.labels.features
    try:
        components = np.asarray(result.require_components())
    except StreamPCAError as error:  # streamed to a place that is not here
        return f'<p class="soft">{text(error)}</p>'
    count = min(MODES, result.n_components)
    grid, genome = grid_of(axis), genome_of(axis)
    if grid is not None:
        return "".join(_map(result, components[j], j, grid) for j in range(count))
    if genome is not None:
        return "".join(_along(result, components[j], j, genome) for j in range(count))
    return "".join(_largest(result, components[j], j) for j in range(count))


def _top(result: Any, row: Any, j: int) -> list[tuple[str, str]]:
    """The features with the largest loadings, and these."""
    values = np.asarray(row, dtype=np.float64) * np.sqrt(result.explained_variance[j])
    order = np.argsort(-np.abs(values), kind="stable")[:NAMED]
    names = result.labels.features.names(order.tolist())
    return [(name, f"{values[i]:+.4g}") for name, i in zip(names, order, strict=True)]


def _share(result: Any, j: int) -> str:
    return f"{100 * result.explained_variance_ratio[j]:.1f} %"


def _map(result: Any, row: Any, j: int, grid: Any) -> str:
    values = np.array(row, dtype=np.float64)
    values[result.dropped] = np.nan
    alt = f"Map of mode {j + 1}, which carries {_share(result, j)} of the variance."
    image = field_image(grid.field(values), grid, alt)
    return _figure(image, alt, ("largest loadings", "loading"), _top(result, row, j))


def _along(result: Any, row: Any, j: int, genome: Any) -> str:
    values = np.abs(np.asarray(row, dtype=np.float64)) * np.sqrt(result.explained_variance[j])
    name = result.labels.features.name(int(np.argmax(values)))
    alt = (
        f"Largest |loading| on PC{j + 1} in each stretch of the genome, {len(genome.names)} "
        f"chromosomes; the highest is {name}."
    )
    drawn = genome_points(genome, values, alt, f"|loading| on PC{j + 1}")
    return _figure(drawn, alt, ("largest loadings", "loading"), _top(result, row, j))


def _largest(result: Any, row: Any, j: int) -> str:
    """Bars of the largest loadings, by name: a table that is a figure."""
    top = _top(result, row, j)
    most = max((abs(float(value)) for _, value in top), default=0.0) or 1.0
    body = ""
    for name, value in top:
        width = 200 * abs(float(value)) / most
        colour = "var(--blue)" if float(value) >= 0 else "var(--orange)"
        body += (
            f"<tr><th scope=row>{text(name)}</th><td>{text(value)}</td><td>"
            f'<svg width="202" height="12" aria-hidden="true">'
            f'<rect width="{width:.1f}" height="12" '
            f'fill="{colour}"/></svg></td></tr>'
        )
    caption = f"Largest loadings on PC{j + 1} ({_share(result, j)} of the variance)"
    inside = f'<div class="wide"><table>{body}</table></div>'
    return f"<figure><figcaption>{text(caption)}</figcaption>{inside}</figure>"


def sweep_figure(result: Any) -> str:
    """The objective of a completion by sweeps, with the held-out error; empty for other fits."""
    trace = result.provenance.get("trace") or []
    if not trace:
        return ""
    chosen = int(trace[-1]["chosen"])  # of the sweeps with held-out cells, where there are any
    trace = [one for one in trace if one["held_out"][chosen] == one["held_out"][chosen]] or trace
    series = {}
    for name, key in (("objective", "penalised"), ("held-out error", "held_out")):
        values = np.array([one[key][chosen] for one in trace], dtype=np.float64)
        if np.isfinite(values).all() and (values > 0).all():
            series[name] = values / values[0]
    if not series:
        return ""
    alt = f"Objective of the completion after each of {len(trace)} sweeps, as a share of the first."
    rows = [(i + 1, *(f"{one[i]:.4g}" for one in series.values())) for i in range(len(trace))]
    drawn = lines(series, alt, "Sweep", "Share of the first value", log=True)
    return _figure(drawn, alt, ("sweep", *series), rows)
