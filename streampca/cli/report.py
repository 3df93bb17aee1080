"""What the command line says about a fit, a model and a source."""

from __future__ import annotations

import json
import sys
from typing import Any

from streampca.errors import InvalidInputError
from streampca.models.genotypes.numbers import eigenvalues
from streampca.passes import PassCost, Plan, size
from streampca.passes.door import held_beside
from streampca.store import History

LEGEND = (
    "+-: bound on the variance's error.  angle: bound on the angle to the true component, in\n"
    "radians.  not determined: the bound says nothing; where neighbours are as large, only their\n"
    "common plane is determined."
)

CAUSES = {
    "lists": "by lists, chromosomes or regions",
    "ill_called": "ill-called",
    "rare_or_ill_called": "rare or ill-called",
    "monomorphic": "monomorphic",
    "without_a_call": "without a call",
    "unplaced": "on chromosome 0",
    "linked": "by LD pruning",
}


def report(model: Any) -> str:
    """The spectrum, and what the fit cost against its plan."""
    plan: Plan = model.plan_
    costs: list[PassCost] = model.cost_
    seconds = sum(c.seconds for c in costs)
    nbytes, peak = sum(c.nbytes for c in costs), model.result_.provenance["peak_bytes"]
    lines = [model.result_.table(), LEGEND, *genotype_lines(model.result_), ""]
    planned = "planned" if all(one.times == 1 for one in plan.passes) else "at most"
    lines.append(f"{'':<14}{planned:>12}{'measured':>12}")
    rows = [
        ("passes", plan.n_passes, len(costs)),
        ("chunk reads", plan.reads, sum(c.reads for c in costs)),
        ("bytes read", size(plan.nbytes), size(nbytes)),
        ("peak memory", size(plan.peak_nbytes), size(peak)),
    ]
    lines += [f"{name:<14}{planned:>12}{measured:>12}" for name, planned, measured in rows]
    held = model.result_.provenance.get("held_bytes")
    if held is not None and peak - held_beside(plan, held) > plan.peak_nbytes:
        lines[-1] += "   (more than planned)"
    lines.append(
        f"{'pass seconds':<14}{'':>12}{seconds:>12.1f}   "
        f"({nbytes / max(seconds, 1e-9) / 1e6:.0f} MB/s)"
    )
    return "\n".join(lines)


def genotype_numbers(result: Any) -> dict[str, Any]:
    """Eigenvalues and significance, and the pruning, for machines."""
    if result.method != "GenotypePCA":
        return {}
    numbers: dict[str, Any] = {"eigenvalues": eigenvalues(result).tolist()}
    try:
        numbers["tracy_widom_p"] = result.tracy_widom().p_value[: result.n_components].tolist()
    except InvalidInputError as error:
        numbers |= {"tracy_widom_p": None, "tracy_widom_not_computed": str(error)}
    return numbers | {"ld": result.settings.get("ld")}


def genotype_lines(result: Any) -> list[str]:
    """Eigenvalues and significance as geneticists state them, and what was left out."""
    if result.method != "GenotypePCA":
        return []
    values = eigenvalues(result)
    shown = min(len(values), 10)
    lines = ["", "eigenvalues of ZZ'/M  " + " ".join(f"{v:.4f}" for v in values[:shown])]
    try:
        p_values = result.tracy_widom().p_value[:shown]
        lines.append(
            "Tracy-Widom p         " + " ".join(f"{p:.2g}" if p else "<1e-300" for p in p_values)
        )
    except InvalidInputError as error:
        lines.append(f"Tracy-Widom p         not computed: {error}")
    lines.append(
        f"M = {result.n_features_used} of {result.n_features} variants: "
        f"{len(result.constant)} monomorphic, {len(result.dropped)} without a call, "
        f"{len(result.filtered)} rare or ill-called"
    )
    if result.missing is not None:
        cells = max(result.n_samples * result.n_features, 1)
        lines.append(f"{result.missing.sum() / cells:.3%} of the calls were missing")
    return lines


def left_out(counts: dict[str, dict[str, int]]) -> str:
    """What of the source was not used, cause by cause."""
    lines = []
    for axis, causes in counts.items():
        gone = [f"{number} {CAUSES[name]}" for name, number in causes.items()
                if name in CAUSES and number]  # fmt: skip
        lines.append(
            f"{axis:<10} {causes['used']} of {causes['source']} used; "
            f"left out: {', '.join(gone) or 'none'}"
        )
    return "\n".join(lines)


def say_damage(history: History) -> None:
    """Name on stderr what of a model store is not intact."""
    for words in [*history.damage.values(), *filter(None, [history.unsure])]:
        print(f"streampca: {words}", file=sys.stderr)


def describe(result: Any) -> str:
    provenance = result.provenance
    lines = [str(result), ""]
    if result.plan.get("solver"):  # sums that took in rows have no plan of their own
        lines.append(f"solver     {result.plan['solver']}: {result.plan.get('reason', '-')}")
    lines.append(
        f"settings   {json.dumps({k: v for k, v in result.settings.items() if v is not None})}"
    )
    if result.preprocessing:
        lines.append(f"before it  {result.preprocessing}; raw new rows get the same")
    lines += genotype_lines(result)
    if result.method != "GenotypePCA" and (len(result.dropped) or len(result.constant)):
        lines.append(
            f"features   {len(result.dropped)} without observation, {len(result.constant)} constant"
        )
    cost = f"{provenance.get('reads', 0)} chunk reads, {provenance.get('seconds', 0):.1f} s"
    known = str(provenance.get("source", ""))[:16]
    lines.append(f"source     {known}, {cost}" if known else f"cost       {cost}")
    versions = provenance.get("versions", {})
    lines.append("made with  " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    return "\n".join(lines)


def summary(model: Any) -> dict[str, Any]:
    result = model.result_
    return {
        "method": result.method,
        "samples": result.n_samples,
        "features": result.n_features,
        "components": result.n_components,
        "preprocessing": [str(one) for one in result.preprocessing.steps],
        "solver": result.plan.get("solver"),
        "explained_variance": result.explained_variance.tolist(),
        "explained_variance_ratio": result.explained_variance_ratio.tolist(),
        "total_variance": result.total_variance,
        "rank": result.rank if result.rank_is_exact else None,
        "rank_at_least": result.rank,
        "dropped_features": len(result.dropped),
        "constant_features": len(result.constant),
        "filtered_features": len(result.filtered),
        "used_features": result.n_features_used,
        **genotype_numbers(result),
        "certificate": None if result.certificate is None else result.certificate.to_dict(),
        "planned": {
            "passes": sum(one.get("times_at_most", 1) for one in result.plan.get("passes", ())),
            **{k: result.plan.get(k) for k in ("reads", "bytes", "peak_bytes")},
        },
        "measured": {
            "passes": len(result.provenance.get("passes", ())),
            **{
                k: result.provenance.get(k)
                for k in ("reads", "bytes", "stored_bytes", "peak_bytes", "seconds")
            },
        },
    }
