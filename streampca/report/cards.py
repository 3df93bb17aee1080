"""How results, estimators and matrices look in a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.html import card, memory_bar, preformatted, sparkline, text
from streampca.passes import size

SHOWN = 16  # characters of a fingerprint


def result_card(result: Any, name: str, settings: str = "") -> str:
    """A fitted result.  name : what it is.  settings : of the estimator, as text."""
    rows = [
        (
            "model",
            text(
                f"{result.n_components} components of {rows_of(result)} samples x "
                f"{result.n_features:,} features"
            ),
        ),
        ("settings", text(settings)),
        ("spectrum", spectrum_line(result)),
        ("certificate", text(certainty(result))),
        ("features", text(left_out(result))),
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


def spectrum_line(result: Any) -> str:
    """A sparkline of the shares of the variance, and their sum; empty without a spectrum."""
    shares = getattr(result, "explained_variance_ratio", None)
    if shares is None or not len(shares):
        return ""
    said = f"{len(shares)} components carry {carried(result)}"
    found = getattr(result, "certificate", None)
    return f"{sparkline(shares, said, () if found is None else found.determined)} {text(said)}"


def carried(result: Any) -> str:
    """The share of the variance that the components carry, in words."""
    share = f"{100 * float(np.sum(result.explained_variance_ratio)):.1f} % of the variance"
    own = getattr(result, "row_mean", None) is not None  # completions by biases
    return share + " that levels of rows and columns leave" * own


def certainty(result: Any) -> str:
    """What the certificate says, in words; empty without one."""
    found = getattr(result, "certificate", None)
    return "" if found is None else found.in_words()


def left_out(result: Any) -> str:
    """Features that the model does not use, by cause; empty where it uses all."""
    causes = {"dropped": "without observation", "constant": "constant", "filtered": "filtered"}
    counts = [(len(getattr(result, one, ())), words) for one, words in causes.items()]
    gone = [f"{number:,} {words}" for number, words in counts if number]
    return f"left out: {', '.join(gone)}" if gone else ""


def _solver(plan: Mapping[str, Any]) -> str:
    if not plan.get("solver"):
        return ""
    return f"<b>{text(plan['solver'])}</b> {text(plan.get('reason', ''))}"


def memory_line(result: Any) -> str:
    """The peak of the fit beside what was announced; empty where it was not measured."""
    peak, planned = result.peak_nbytes, result.plan.get("peak_bytes")
    if not peak:
        return ""
    said = f"{size(peak)} at its peak" + (f", {size(planned)} planned" if planned else "")
    return memory_bar({"peak": peak}, planned, said)


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
