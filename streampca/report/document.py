"""A report: everything about a fitted model in one HTML file, which needs no network.

The page is written by hand, not by a plotting library: its script is one screen of canvas calls
(``scores.js``), where Bokeh would add 1.4 MB to every file and a dependency to the product.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, hide_secrets, printable_name
from streampca.html import card, preformatted, table, text
from streampca.matrix.alignment import along, rows_of
from streampca.passes import size
from streampca.report import cards
from streampca.report.figures import feature_figures, spectrum_figure, sweep_figure
from streampca.report.presentation import Presentation
from streampca.store.bundle import whole_file

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
CANVAS = '<canvas id="canvas"'
Section = tuple[str, str]  # heading, HTML


@dataclass(frozen=True, repr=False)
class Report:
    """A report of a fitted model.

    html : the whole page: one file, with no link to anything outside of it.
    """

    title: str
    html: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all. Raises OutputError where that fails."""
        with whole_file(path) as file:
            file.write(self.html.encode())
        return Path(path)

    def __repr__(self) -> str:
        return f"<Report: {self.title}, {size(len(self.html.encode()))}; .save('report.html')>"

    def _repr_html_(self) -> str:
        nbytes = text(size(len(self.html.encode())))
        rows = [("size", nbytes), ("keep it", "<code>.save('report.html')</code>")]
        return card("Report", self.title, rows)


def report_of(
    result: Any, *, scores: Any = None, labels: Any = None, title: str = "", path: str = "model"
) -> Report:
    """The report of a result.

    scores : (n, k) to draw; None takes those of the rows of the fit, if it kept them.
    labels : (n,) one label per sample, or several by name.  title : of the page.
    path : of the saved model, as the page says how to load it.

    Cost: no pass. Reads all scores into memory; 50,000 of them are drawn, and the page says so.
    Raises InvalidInputError for scores or labels that do not fit.
    """
    title = title or f"{result.method} of {cards.rows_of(result)} samples"
    shown = result.presentation()
    sections = [section for section in _sections(result, shown, scores, labels, path) if section[1]]
    links = "".join(f'<a href="#{_anchor(head)}">{text(head)}</a>' for head, _ in sections)
    body = "".join(
        f'<section id="{_anchor(head)}"><h2>{text(head)}</h2>{inside}</section>'
        for head, inside in sections
    )
    page = files("streampca.report")
    style = page.joinpath("page.css").read_text(encoding="utf-8")
    script = page.joinpath("scores.js").read_text(encoding="utf-8")
    script = f"<script>{script}</script>" if CANVAS in body else ""
    whole = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{text(title)}</title><style>{style}</style></head>"
        f"<body><main><h1>{text(title)}</h1>{_summary(result, shown)}"
        f'<nav aria-label="Sections">{links}'
        f"</nav>{body}</main>{script}</body></html>\n"
    )
    return Report(title, whole.encode(errors="replace").decode())  # names of files may be no text


def _anchor(head: str) -> str:
    return head.lower().replace(" ", "-")


def _summary(result: Any, shown: Presentation) -> str:
    lines = [
        f"{result.n_components} components of {cards.rows_of(result)} samples x "
        f"{result.n_features:,} features."
    ]
    if shown.shares is not None and len(shown.shares):
        lines.append(f"They carry {cards.carried(shown)}.")
    if found := shown.candidates:
        kept, without = found[0], [one["held_out"] for one in found if not one["rank"]]
        lines.append(f"Held-out cells have a root mean square error of {kept['held_out']:.4g}")
        lines[-1] += f"; without components {without[0]:.4g}." if without else "."
    if sentence := cards.certainty(shown):
        lines.append(f"{sentence}.")
    return f'<p class="lead">{text(" ".join(lines))}</p>'


COMPLEX = '<p class="soft">These scores are complex: plots.pcs(model) draws them.</p>'


def _sections(
    result: Any, shown: Presentation, scores: Any, labels: Any, path: str
) -> Iterator[Section]:
    warnings = "".join(f'<p class="warning">{text(one)}</p>' for one in notices(result, shown))
    yield "Worth knowing", warnings
    yield "Spectrum", spectrum_figure(shown)
    yield "Scores", COMPLEX if result.takes_complex else _scores(shown, scores, labels)
    yield "Features", feature_figures(shown)
    yield "Held-out error", _held_out(shown)
    yield "Sweeps", sweep_figure(shown.sweeps)
    yield "Certificate", _certificate(shown)
    yield "Plan and cost", _costs(result)
    yield "Columns left out", _left_out(shown)
    yield "Provenance", _provenance(result)
    yield (
        "Load it again",
        preformatted(
            f"import streampca\n\nmodel = streampca.load({path!r})\nscores = model.transform(X_new)"
        ),
    )


def notices(result: Any, shown: Presentation) -> list[str]:
    """What a reader should know before trusting the numbers, from the result itself."""
    lines, sure = [], shown.certainty
    if sure is not None and not sure.determined.all():
        numbers = (np.flatnonzero(~sure.determined) + 1).tolist()
        which = ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
        lines.append(
            f"The direction of component {which} is not determined: its variance is too near to a "
            "neighbour's. Together such components span a plane that is; one by one they may turn."
        )
    if gone := cards.left_out(shown):
        lines.append(f"Features {gone}. They have no part in the components.")
    name, share = shown.largest_feature() or ("", 0.0)
    if share > 0.5:
        lines.append(f"The feature {name} holds {100 * share:.0f} % of the total variance.")
    lines += [f"{one}." for one in shown.findings()]
    allowed = sum(one.get("times_at_most", 1) for one in result.plan.get("passes", ()))
    if shown.sweeps is not None and shown.sweeps.passes >= allowed:
        lines.append(
            f"The completion used all {shown.sweeps.passes} passes that it was allowed "
            "(max_passes); its last sweep still moved the estimate by "
            f"{shown.sweeps.last_change:.2g} of its norm."
        )
    return lines


def _scores(shown: Presentation, scores: Any, labels: Any) -> str:
    """The interactive figure, its description and its table."""
    views = [shown] if shown.other is None else [shown, shown.other]
    values = scores_of(shown, scores)
    if values is not None and not values.shape[1]:
        return '<p class="soft">This fit kept no component, so that there are no scores.</p>'
    if values is None:
        made = shown.makes_scores or "scores=model.transform(X)"
        return (
            '<p class="soft">This fit kept no scores, since it streamed the samples. Give them: '
            f"model.report({made}), or --scores FILE.</p>"
        )
    n, rows = len(values), thinned(len(values))
    named = {} if labels is None else labels if isinstance(labels, Mapping) else {"label": labels}
    first = scores[0] if len(views) > 1 and scores is not None else scores
    samples = rows_of(shown.labels.samples, first, n)
    named = {name: along(value, samples, f"labels {name!r}") for name, value in named.items()}
    names = samples.names(rows.tolist()) if samples.named and len(samples) == n else None
    if names and np.asarray(samples.coords.get(samples.dims[0], ())).dtype.kind == "M":
        names = [name.removesuffix(".000000000").removesuffix("T00:00:00") for name in names]
    titles = [
        shown.name(j) if len(views) == 1 else f"{str(view.view).upper()} {j + 1}"
        for j in range(shown.n_components)
        for view in views
    ]
    points = packed(values, rows, names, named, titles)
    drawn = (
        f"All {n:,} samples are drawn."
        if n <= MOST
        else (f"{len(rows):,} of {n:,} samples are drawn, chosen at random with a fixed seed.")
    )
    limits = [(title, *_limits(c)) for title, c in zip(titles[:10], values.T, strict=False)]
    return (
        f'<figure><p>{drawn}</p>{CONTROLS}{CANVAS} tabindex="0" role="img" '
        f'aria-describedby="said" aria-label="Scatter plot of {n:,} samples on two components. '
        'Keys: arrows move, plus and minus zoom, 0 shows all, n and p step through samples.">'
        '</canvas><div class="controls" id="legend"></div>'
        "<figcaption>Coordinates are rounded to 16 bits.</figcaption>"
        f"{_table(('component', 'least', 'mean', 'largest'), limits)}</figure>"
        f'<script type="application/json" id="points">{points}</script>'
    )


def _held_out(shown: Presentation) -> str:
    """A table of the candidates of a completion; empty for other fits."""
    found = shown.candidates
    if not found:
        return ""
    rows = [(x["rank"], f"{x['penalty']:.4g}", f"{x['held_out']:.4g}") for x in found]
    words = "Candidates by their errors in cells that their fits did not see. The first is kept."
    head = ("rank", "penalty", "root mean square error")
    return f"<p>{words}</p>{table(head, rows[:6])}" + (_table(head, rows) if rows[6:] else "")


def _limits(values: Any) -> tuple[str, ...]:
    """Least, mean and largest of the finite values, as text."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ("none",) * 3
    return tuple(f"{v + 0.0:.4g}" for v in (known.min(), known.mean(dtype=np.float64), known.max()))


CONTROLS = (
    '<div class="controls"><label>across <select id="x"></select></label>'
    '<label>upwards <select id="y"></select></label>'
    '<label>colour <select id="colour"></select></label>'
    '<button type="button" id="in" aria-label="zoom in">+</button>'
    '<button type="button" id="out" aria-label="zoom out">−</button>'
    '<button type="button" id="whole">all</button>'
    '<label><input type="checkbox" id="select"> select by dragging</label></div>'
    '<div id="said" role="status" aria-live="polite">Hover for a sample; wheel or buttons zoom; '
    "drag moves; Shift and drag selects; a click in the legend hides a group.</div>"
)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    inside = f'<div class="wide">{table(head, rows)}</div>'
    return f"<details><summary>as a table</summary>{inside}</details>"


def _certificate(shown: Presentation) -> str:
    sure = shown.certainty
    if sure is None or sure.angles is None or shown.variances is None:
        return '<p class="soft">This kind of model has no certificate.</p>'
    columns = zip(shown.variances, sure.bounds, sure.angles, sure.determined, strict=True)
    rows = [
        (i, f"{value:.6g}", f"{bound:.1e}", f"{angle:.1e}" if known else "not determined")
        for i, (value, bound, angle, known) in enumerate(columns, 1)
    ]
    words = (
        f"{sure.words}. The bounds hold for the numbers that were read, whatever the order "
        "in which they were added; how far a sample stands for its population is another question."
    )
    head = ("component", "variance", "its error is at most", "angle to the true one (radians)")
    return f"<p>{text(words)}</p>{_table(head, rows)}"


def _costs(result: Any) -> str:
    """Planned and measured costs."""
    summary = result.summary()
    plan, cost = summary["planned"], {**summary["measured"], "peak_bytes": result.peak_nbytes}
    rows = []
    for name, key in (
        ("passes", "passes"),
        ("chunk reads", "reads"),
        ("bytes read", "bytes"),
        ("peak memory", "peak_bytes"),
        ("seconds in passes", "seconds"),
    ):
        form = size if "bytes" in key else (lambda v: f"{v:,.4g}")
        both = (plan.get(key), cost.get(key))
        rows.append([name, *(form(one) if one is not None else "" for one in both)])
    solver = result.plan.get("solver") or ""
    why = f"{solver}: {result.plan.get('reason', '')}" if solver else "This model has no plan."
    note = "Measured memory is that of the fit, without what its process held before."
    cells = table(("", "planned, at most", "measured"), rows)
    return f"<p>{text(why)}</p>{cells}<p class=key>{note}</p>"


MOST_NAMES = 40


def _left_out(shown: Presentation) -> str:
    parts = []
    for cause, places in shown.left_out.items():
        if len(places):
            names = ", ".join(shown.labels.features.names(places[:MOST_NAMES].tolist()))
            more = f" and {len(places) - MOST_NAMES:,} more" if len(places) > MOST_NAMES else ""
            parts.append(
                f"<p>{len(places):,} {cause}: <span class=soft>{text(names + more)}</span></p>"
            )
    return "".join(parts) or "<p>None: all features have a part in the model.</p>"


def _provenance(result: Any) -> str:
    rows = [
        ("source fingerprint", result.provenance.get("source", "")),
        ("read", cards.source_line(result)),
        ("preprocessing", " then ".join(map(str, result.preprocessing.steps))),
        *result.provenance.get("versions", {}).items(),
    ]
    settings = json.dumps(result.options_used, indent=1, default=str, sort_keys=True)
    inside = preformatted(hide_secrets(settings))
    return (
        f"{table(('', ''), [row for row in rows if row[1]])}"
        f"<details><summary>settings</summary>{inside}</details>"
    )


Array = np.ndarray[Any, Any]
MOST = 50_000  # points that are drawn
MOST_COMPONENTS = 10
MOST_GROUPS = 24
NO_VALUE = -32768  # of the 16-bit integers; the others run from -32767 to 32767


def scores_of(shown: Presentation, scores: Any) -> Array | None:
    """(n, k) scores to draw, of two views (n, 2k) with those of X and of Y in turn; None where
    there are none. Raises InvalidInputError."""
    if shown.other is None:
        return _checked(shown, shown.scores if scores is None else shown.arrange(scores))
    both = [shown.scores, shown.other.scores] if scores is None else scores
    if not isinstance(both, (tuple, list)) or len(both) != 2:
        raise InvalidInputError(
            f"scores of a {shown.method} are those of X and of Y; got {type(both).__name__}: "
            f"{shown.makes_scores}"
        )
    x, y = (_checked(shown, one) for one in both)
    if x is None or y is None:
        return None
    if x.shape != y.shape:
        raise InvalidInputError(
            f"scores of X have shape {x.shape} and those of Y {y.shape}; expected the same "
            f"samples: {shown.makes_scores}"
        )
    return np.dstack([x, y]).reshape(len(x), -1)


def _checked(shown: Presentation, scores: Any) -> Array | None:
    if scores is None:
        return None
    values, k = np.asarray(scores), shown.n_components
    if values.ndim < 2 or values.shape[-1] != k:
        raise InvalidInputError(
            f"scores has shape {values.shape}; expected (n, {k}), one column per component: "
            f"{shown.makes_scores}"
        )
    if values.dtype.kind not in "biuf" or not len(values):
        raise InvalidInputError(
            f"scores are {values.dtype} of shape {values.shape}; expected real numbers of one "
            "sample or more"
        )
    return values.reshape(int(np.prod(values.shape[:-1])), k)


def thinned(n: int) -> Array:
    """The numbers of the samples that are drawn, in increasing order: a fixed random sample."""
    if n <= MOST:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, MOST, replace=False))


def packed(
    scores: Array,
    rows: Array,
    names: list[str] | None,
    labels: Mapping[str, Any],
    titles: list[str],
) -> str:
    """What the script of the page reads, as JSON that is safe inside a script element.

    rows : of the scores that are drawn.  titles : of the components.
    """
    shown = range(min(scores.shape[1], MOST_COMPONENTS))
    data = {
        "count": len(rows),
        "axes": [
            {"title": printable_name(titles[j]), **_quantised(scores[rows, j])} for j in shown
        ],
        "labels": [_label(name, values, rows) for name, values in labels.items()],
        "names": None if names is None else [*map(printable_name, names)],
        "rows": (rows + 1).tolist() if names is None and len(rows) < len(scores) else None,
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _quantised(values: Array) -> dict[str, Any]:
    """Values between their limits as base64 of little-endian 16-bit integers."""
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0, 1)
    share = (np.where(known, values, low) - low) / ((high - low) or 1.0)
    codes = np.where(known, np.rint(share * 65534) - 32767, NO_VALUE).astype("<i2")
    return {"low": low, "high": high, "codes": base64.b64encode(codes.tobytes()).decode()}


def _label(name: str, values: Array, rows: Array) -> dict[str, Any]:
    """One column of labels: numbers, or groups of which the rarest are one."""
    if values.dtype.kind == "f":
        return {"title": printable_name(name), **_quantised(values[rows])}
    found, codes, counts = np.unique(values.astype(str), return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_GROUPS])
    table = np.full(len(found), len(kept))
    table[kept] = np.arange(len(kept))
    groups = [printable_name(found[i]) or "missing" for i in kept]
    groups += ["other"] if len(kept) < len(found) else []
    packed_codes = base64.b64encode(table[codes][rows].astype(np.uint8).tobytes()).decode()
    return {"title": printable_name(name), "groups": groups, "codes": packed_codes}
