"""How results, estimators and matrices look in a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streampca.html import card, memory_bar, preformatted, sparkline, text
from streampca.passes import size
from streampca.report.presentation import Presentation

SHOWN = 16  # characters of a fingerprint


def result_card(result: Any, name: str, settings: str = "") -> str:
    """A fitted result.  name : what it is.  settings : of the estimator, as text."""
    shown = result.presentation()
    rows = [
        (
            "model",
            text(
                f"{result.n_components} components of {rows_of(result)} samples x "
                f"{result.n_features:,} features"
            ),
        ),
        ("settings", text(settings)),
        ("spectrum", spectrum_line(shown)),
        ("certificate", text(certainty(shown))),
        ("features", text(left_out(shown))),
        ("solver", _solver(result.plan)),
        ("memory", memory_line(result)),
        ("source", text(source_line(result))),
        ("made with", text(versions_line(result))),
    ]
    details = {"components": preformatted(result.table())} if result.table() else {}
    return card(name, "fitted", rows, details)


def estimator_card(name: str, settings: str) -> str:
    """An estimator before its fit."""
    return card(name, "not fitted", [("settings", text(settings))])


def settings_line(result: Any) -> str:
    """The settings that were set, as text."""
    return json.dumps(result.options_used, default=str)


def rows_of(result: Any) -> str:
    """The number of rows of the fit, as text."""
    return f"{result.n_samples:,}" if result.n_samples else "an unknown number of"


def spectrum_line(shown: Presentation) -> str:
    """A sparkline of the shares of the variance, and their sum; empty without a spectrum."""
    if shown.shares is None or not len(shown.shares):
        return ""
    words = f"{shown.n_components} components carry {carried(shown)}"
    certain = [] if shown.certainty is None else shown.certainty.determined.tolist()
    return f"{sparkline(shown.shares.tolist(), words, certain)} {text(words)}"


def carried(shown: Presentation) -> str:
    """What all components carry, in words."""
    return shown.carries(range(shown.n_components))


def certainty(shown: Presentation) -> str:
    """What the certificate says, in words; empty without one."""
    return "" if shown.certainty is None else shown.certainty.words


def left_out(shown: Presentation) -> str:
    """Features that the model does not use, by cause; empty where it uses all."""
    gone = [f"{len(where):,} {cause}" for cause, where in shown.left_out.items() if len(where)]
    return f"left out: {', '.join(gone)}" if gone else ""


def _solver(plan: Mapping[str, Any]) -> str:
    if not plan.get("solver"):
        return ""
    return f"<b>{text(plan['solver'])}</b> {text(plan.get('reason', ''))}"


def memory_line(result: Any) -> str:
    """The measured peak of the fit and the planned one; empty where it was not measured."""
    peak, planned = result.peak_nbytes, result.plan.get("peak_bytes")
    if not peak:
        return ""
    words = f"{size(peak)} at its peak" + (f", {size(planned)} planned" if planned else "")
    return memory_bar({"peak": peak}, planned, words)


def source_line(result: Any) -> str:
    """The fingerprint of the source, and what reading it took; empty without provenance."""
    provenance = result.provenance
    known = f"{str(provenance.get('source', ''))[:SHOWN]}: " if provenance.get("source") else ""
    if "reads" not in provenance:
        return known.rstrip(": ")
    passes = len(provenance.get("passes", ()))
    many = f"{passes} pass" + ("es" if passes != 1 else "")
    return (
        f"{known}{many}, {provenance['reads']:,} chunk reads, "
        f"{size(provenance.get('bytes') or 0)}, "
        f"{provenance.get('seconds') or 0:.1f} s"
    )


def versions_line(result: Any) -> str:
    """The versions of the libraries that made it."""
    return ", ".join(f"{k} {v}" for k, v in result.provenance.get("versions", {}).items())
