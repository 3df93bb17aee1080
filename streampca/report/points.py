"""The scores of a report: thinned, as 16-bit integers, with labels to colour them by."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError

Array = np.ndarray[Any, Any]
MOST = 50_000  # points that are drawn
MOST_COMPONENTS = 10
MOST_GROUPS = 24
NO_VALUE = -32768  # of the 16-bit integers; the others run from -32767 to 32767


def scores_of(result: Any, scores: Any) -> Array | None:
    """(n, k) scores to draw, or None where there are none. Raises InvalidInputError."""
    if scores is None:
        scores = getattr(result, "scores", None)
    if scores is None:
        return None
    values = np.asarray(scores)
    if values.ndim < 2 or values.shape[-1] != result.n_components:
        raise InvalidInputError(
            f"scores has shape {values.shape}; expected (n, {result.n_components}), one column per "
            "component: scores=model.transform(X)"
        )
    if values.dtype.kind not in "biuf" or not values.size:
        raise InvalidInputError(
            f"scores are {values.dtype} of shape {values.shape}; expected real numbers of one "
            "sample or more"
        )
    return values.reshape(-1, values.shape[-1])


def thinned(n: int) -> Array:
    """The numbers of the samples that are drawn, in increasing order: a fixed random sample."""
    if n <= MOST:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, MOST, replace=False))


def packed(
    scores: Array, rows: Array, names: list[str] | None, labels: Mapping[str, Any],
    titles: list[str],
) -> str:  # fmt: skip
    """What the script of the page reads, as JSON that is safe inside a script element.

    rows : of the scores that are drawn.  titles : of the components.
    """
    shown = range(min(scores.shape[1], MOST_COMPONENTS))
    told = {
        "count": len(rows),
        "axes": [{"title": titles[j], **_quantised(scores[rows, j])} for j in shown],
        "labels": [_label(name, values, rows, len(scores)) for name, values in labels.items()],
        "names": None if names is None else names,
        "rows": (rows + 1).tolist() if names is None and len(rows) < len(scores) else None,
    }
    return json.dumps(told, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _quantised(values: Array) -> dict[str, Any]:
    """Values between their limits as base64 of little-endian 16-bit integers."""
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0, 1)
    share = (np.where(known, values, low) - low) / ((high - low) or 1.0)
    codes = np.where(known, np.rint(share * 65534) - 32767, NO_VALUE).astype("<i2")
    return {"low": low, "high": high, "codes": base64.b64encode(codes.tobytes()).decode()}


def _label(name: str, values: Any, rows: Array, n: int) -> dict[str, Any]:
    """One column of labels: numbers, or groups of which the rarest are one."""
    values = np.asarray(values)
    if values.shape != (n,):
        raise InvalidInputError(
            f"labels {name!r} has shape {values.shape}; expected one label per sample, ({n},)"
        )
    if values.dtype.kind == "f":
        return {"title": name, **_quantised(values[rows])}
    found, codes, counts = np.unique(values.astype(str), return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_GROUPS])
    table = np.full(len(found), len(kept))
    table[kept] = np.arange(len(kept))
    groups = [str(found[i]) or "missing" for i in kept]
    groups += ["other"] if len(kept) < len(found) else []
    packed_codes = base64.b64encode(table[codes][rows].astype(np.uint8).tobytes()).decode()
    return {"title": name, "groups": groups, "codes": packed_codes}
