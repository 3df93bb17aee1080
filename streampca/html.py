"""Pieces of HTML for notebooks and reports: cards, bars, sparklines. No script; all text escaped.

Colours come from the surrounding page, or are visible on light and on dark backgrounds.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streampca.errors import hide_secrets, printable

STYLE = """<style>
.spca{font:13px/1.45 system-ui,sans-serif;max-width:760px;color:inherit}
.spca>div{border-bottom:1px solid rgba(128,128,128,.45);padding:2px 0 4px;margin-bottom:4px}
.spca b{font-weight:600}.spca i{font-style:normal;opacity:.75}
.spca table{border-collapse:collapse;margin:0;color:inherit;font:inherit}
.spca td,.spca th{padding:1px 12px 1px 0;text-align:left;vertical-align:top;border:0;
background:none;font-weight:400}
.spca th{opacity:.75;white-space:nowrap}.spca td{overflow-wrap:anywhere}
.spca svg{vertical-align:middle;max-width:100%;color:inherit}
.spca details{margin-top:3px}.spca summary{cursor:pointer;opacity:.75}
.spca pre{font-size:12px;margin:4px 0;overflow-x:auto;background:none;color:inherit}
</style>"""
SHADES = ("#3b8bc4", "#d98c00", "#12a07a", "#c56aa0", "#d96a2b", "#7a8fa6")
MOST_BARS = 60


def text(value: Any) -> str:
    """A value as text that is safe inside HTML: no credentials, no control characters."""
    return html.escape(printable(hide_secrets(str(value))))


def card(
    title: str, line: str, rows: Iterable[tuple[str, str]], details: Mapping[str, str] | None = None
) -> str:
    """A titled table of two columns, and parts that open on a click.

    title, line : text.  rows : (name as text, HTML).  details : HTML by its name as text.
    """
    body = "".join(f"<tr><th scope=row>{text(k)}</th><td>{v}</td></tr>" for k, v in rows if v)
    more = "".join(
        f"<details><summary>{text(name)}</summary>{inside}</details>"
        for name, inside in (details or {}).items()
        if inside
    )
    return (
        f"{STYLE}<div class=spca><div><b>{text(title)}</b> <i>{text(line)}</i></div>"
        f"<table>{body}</table>{more}</div>"
    )


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table of text with a header."""
    top = "".join(f"<th scope=col>{text(one)}</th>" for one in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{text(one)}</td>" for one in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def preformatted(value: Any) -> str:
    """Text as it stands."""
    return f"<pre>{text(value)}</pre>"


def sparkline(values: Sequence[float], label: str, certain: Sequence[bool] = ()) -> str:
    """Bars of positive values.  label : the same in words.  certain : False draws a bar hollow."""
    shown = [max(float(one), 0.0) for one in values[:MOST_BARS]]
    top = max(shown, default=0.0) or 1.0
    bars = []
    for i, value in enumerate(shown):
        height = max(24.0 * value / top, 0.6)
        sure = i >= len(certain) or certain[i]
        look = f'fill="{SHADES[0]}"' if sure else f'fill="none" stroke="{SHADES[0]}"'
        bars.append(
            f'<rect x="{6 * i + 0.5:g}" y="{25 - height:.1f}" width="4.5" '
            f'height="{height:.1f}" {look}/>'
        )
    width = max(6 * len(shown), 6)
    return (
        f'<svg role="img" width="{width}" height="26" viewBox="0 0 {width} 26">'
        f"<title>{text(label)}</title>{''.join(bars)}</svg>"
    )


def memory_bar(terms: Mapping[str, int], limit: int | None, label: str) -> str:
    """Bytes by what takes them, as one bar up to a limit.  label : the same in words."""
    total = sum(terms.values())
    whole = max(total, limit or 0, 1)
    x, parts = 0.0, []
    for i, (name, nbytes) in enumerate(sorted(terms.items(), key=lambda one: -one[1])):
        width = 300.0 * nbytes / whole
        if width >= 0.5:
            shade = SHADES[i % len(SHADES)]
            parts.append(
                f'<rect x="{x:.1f}" y="1" width="{width:.1f}" height="12" '
                f'fill="{shade}"><title>{text(name)}</title></rect>'
            )
        x += width
    return (
        f'<svg role="img" width="302" height="14" viewBox="0 0 302 14"><title>{text(label)}</title>'
        f'{"".join(parts)}<rect x="0.5" y="0.5" width="301" height="13" fill="none" '
        f'stroke="currentColor" stroke-opacity="0.5"/></svg> {text(label)}'
    )
