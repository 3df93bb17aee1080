"""What a saved result must hold before anything is computed or printed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DamagedSourceError
from streampca.store import check_fields, check_shapes

if TYPE_CHECKING:
    from streampca.models.decomposition import Decomposition

NUMBER, TEXT, LIST, OBJECT = (int, float, type(None)), (str, type(None)), (list,), (dict,)
PROVENANCE: dict[str, tuple[type, ...]] = {
    "reads": NUMBER, "bytes": NUMBER, "stored_bytes": NUMBER, "peak_bytes": NUMBER,
    "held_bytes": NUMBER, "seconds": NUMBER, "passes": LIST, "versions": OBJECT, "source": TEXT,
}  # fmt: skip
PLAN: dict[str, tuple[type, ...]] = {
    "solver": TEXT, "reason": TEXT, "passes": LIST, "reads": NUMBER, "bytes": NUMBER,
    "peak_bytes": NUMBER,
}  # fmt: skip
PLACES = ("dropped", "constant", "filtered", "heywood")  # numbers of features


def check_result(result: Decomposition, where: str) -> None:
    """The types and shapes of a result that was read. Raises DamagedSourceError."""
    check_fields(result, where)
    k, p = np.size(result.explained_variance), np.size(result.mean)
    check_shapes(result, _shapes(k, p), where)
    for name in PLACES:
        places = np.asarray(getattr(result, name, ()))
        if places.size and not (
            places.dtype.kind in "iu" and places.min() >= 0 and places.max() < p
        ):
            raise DamagedSourceError(f"{where} is damaged: {name} is not of its {p} features")
    if len(result.labels.features) != p:
        raise DamagedSourceError(
            f"{where} is damaged: it names {len(result.labels.features)} of {p} features"
        )
    if result.certificate is not None:
        one = (k,)
        shapes: dict[str, tuple[int | None, ...]] = dict.fromkeys(
            ("residual", "variance_bound", "gap", "angle_bound"), one
        )
        check_fields(result.certificate, f"{where}: certificate")
        check_shapes(result.certificate, shapes, f"{where}: certificate")
    _check_entries(result.provenance, PROVENANCE, f"{where}: provenance")
    _check_entries(result.plan, PLAN, f"{where}: plan")
    for one_pass in result.plan.get("passes", ()):
        at_most = one_pass.get("times_at_most", 1) if isinstance(one_pass, dict) else None
        if type(at_most) is not int:
            raise DamagedSourceError(f"{where} is damaged: plan: {one_pass!r:.80} is no pass")


def _shapes(k: int, p: int) -> dict[str, tuple[int | None, ...]]:
    features = ("mean", "scale", "missing", "feature_variance", "feature_mean", "weights",
                "uniquenesses")  # fmt: skip
    lists = ("spectrum", "missing_by_sample", "fitted", "row_mean", "row_scale", "trace", *PLACES)
    shapes: dict[str, tuple[int | None, ...]] = dict.fromkeys(features, (p,))
    shapes |= dict.fromkeys(lists, (None,))
    shapes |= dict.fromkeys(("rotation", "correlations"), (k, k))
    shapes |= dict.fromkeys(("explained_variance", "base_variance"), (k,))
    return shapes | {"components": (k, p), "scores": (None, k), "removed": (None, p)}


def _check_entries(told: Any, types: dict[str, tuple[type, ...]], where: str) -> None:
    """Those entries that are printed: where they are there, they have these types."""
    for name, kinds in types.items():
        if name in told and (not isinstance(told[name], kinds) or isinstance(told[name], bool)):
            raise DamagedSourceError(f"{where} is damaged: {name} is {told[name]!r:.80}")
