"""``streampca info``: describe a saved model or a source. Reports of fits and of models."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import streampca
from streampca.cli.commands import Parser
from streampca.cli.options import open_source, print_answer, source_options
from streampca.cli.terminal import announce
from streampca.errors import InvalidInputError
from streampca.genetics.genotype_result import GenotypeComponents
from streampca.matrix.labels import json_of
from streampca.matrix.places import on_globe
from streampca.model_store.history import HEAD, History
from streampca.model_store.versions import MARKER
from streampca.models.results.decomposition import Decomposition
from streampca.passes import PassCost, Plan, size
from streampca.store import is_bundle


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["info"]
    one.set_defaults(run=run_info)
    one.add_argument("source", nargs="+", metavar="MODEL|SOURCE")
    source_options(one)


def _info_of_model(arguments: argparse.Namespace) -> int:
    place = arguments.source[0]
    if is_bundle(place):
        model, served = streampca.load(place), {}
    else:
        store = streampca.ModelStore(place)
        print_damage(store.history())
        version: Any = store.latest()
        model, served = version.load(), {"version": version.number, "id": version.id}
    lines = [f"version    {served['version']} ({served['id']}), promoted"] if served else []
    text = "\n".join([*lines, describe(model.result_)])
    print_answer(arguments, {**served, **summary(model)}, text)
    return 0


def _is_model(path: str) -> bool:
    """Whether a saved model or a model store is at this local path."""
    return is_bundle(path) or any((Path(path) / name).is_file() for name in (MARKER, HEAD))


def run_info(arguments: argparse.Namespace) -> int:
    """``streampca info``: describe a model or a source."""
    if len(arguments.source) == 1 and _is_model(arguments.source[0]):
        return _info_of_model(arguments)
    matrix = open_source(arguments)
    n, p = matrix.shape
    text: dict[str, Any] = {
        "samples": n,
        "features": p,
        "dtype": str(matrix.dtype),
        "bytes": matrix.nbytes,
    }
    for axis, name in enumerate(("sample", "feature")):
        edges = matrix.chunk_edges(axis)
        text[f"chunks along {name}s"] = None if edges is None else len(edges) - 1
    if matrix.note:
        text["note"] = matrix.note
    lines = (f"{key:<22} {size(v) if key == 'bytes' else v}" for key, v in text.items())
    print_answer(arguments, text, "\n".join(lines))
    return 0


# Reports of a fit and of a model.

LEGEND = (
    "+- and angle (radians) bound the errors of the computation, not those of the\n"
    "sample.  not determined: there is no useful bound; of components with equal\n"
    "variances only their common plane is determined."
)

SHOWN = 10  # components with sampling errors
CAUSES = {
    "lists": "by lists, chromosomes or regions",
    "multiallelic": "of more than two alleles",
    "ill_called": "ill-called",
    "rare_or_ill_called": "rare or ill-called",
    "monomorphic": "monomorphic",
    "without_a_call": "without a call",
    "unplaced": "on chromosome 0",
    "linked": "by LD pruning",
}


def report(model: Any, verbose: bool = False) -> str:
    """The spectrum of a fit and its cost as text; ``verbose``: with the planned figures."""
    bounds = ["", LEGEND] if hasattr(model.result_, "certificate") else []
    cost = _compared if verbose else _cost
    lines = [str(model.result_), *bounds, *_own_lines(model.result_), ""]
    source = [f"source: {model.plan_.note}"] if model.plan_.note and not verbose else []
    return "\n".join([*lines, *preprocessing_line(model.result_), *source, *cost(model)])


def preprocessing_line(result: Any) -> list[str]:
    """The preprocessing of a fit, in a line."""
    steps = result.preprocessing
    return [f"before it  {steps}; raw new rows get the same"] if steps else []


def _own_lines(result: Any) -> list[str]:
    """What a geneticist, or a climate scientist, asks of a fit next."""
    if lines := genotype_lines(result):
        return lines
    lines = [*result.notes(), *sampling_lines(result)]
    return ["", *lines] if lines else []


def sampling_lines(result: Any) -> list[str]:
    """North's sampling errors of a fit of fields, and the modes that they do not separate."""
    if not (isinstance(result, Decomposition) and result.principal and result.n_samples):
        return []
    axis = result.labels.features
    if not on_globe(axis, np.arange(len(axis))):
        return []
    shares, errors = result.explained_variance_ratio, np.asarray(result.eof.north_errors(True))
    mixed = np.flatnonzero(shares[:-1] - errors[:-1] < shares[1:] + errors[1:]) + 1
    pairs = ", ".join(f"{one} and {one + 1}" for one in mixed[mixed < SHOWN].tolist())
    return [
        f"sampling   +- {', '.join(f'{error:.2%}' for error in errors[:SHOWN])} of the share",
        "           (North's rule: samples taken as independent; in slow series it is more)",
        *([f"           the sample does not separate {pairs}"] if pairs else []),
    ]


def _cost(model: Any) -> list[str]:
    """What a fit took, in a line."""
    plan: Plan = model.plan_
    costs: list[PassCost] = model.cost_
    seconds, nbytes = sum(c.seconds for c in costs), sum(c.nbytes for c in costs)
    passes = f"{len(costs)} pass" + "es" * (len(costs) != 1)
    more = " (more than planned)" * _exceeded(model)
    return [
        f"{plan.solver}: {passes}, {size(nbytes)} read in {seconds:.1f} s; memory "
        f"{size(model.result_.peak_nbytes)} of {size(plan.peak_nbytes)} planned{more}"
    ]


def _exceeded(model: Any) -> bool:
    """Whether a fit took more memory than its plan."""
    return bool(model.result_.peak_nbytes > model.plan_.peak_nbytes)


def _compared(model: Any) -> list[str]:
    """What a fit took, compared with its plan."""
    plan: Plan = model.plan_
    costs: list[PassCost] = model.cost_
    seconds = sum(c.seconds for c in costs)
    nbytes, peak = sum(c.nbytes for c in costs), model.result_.peak_nbytes
    planned = "planned" if all(one.times == 1 for one in plan.passes) else "at most"
    lines = [f"{'':<14}{planned:>12}{'measured':>12}"]
    rows = [
        ("passes", plan.n_passes, len(costs)),
        ("chunk reads", plan.reads, sum(c.reads for c in costs)),
        ("bytes read", size(plan.nbytes), size(nbytes)),
        ("peak memory", size(plan.peak_nbytes), size(peak)),
    ]
    lines += [f"{name:<14}{planned:>12}{measured:>12}" for name, planned, measured in rows]
    if _exceeded(model):
        lines[-1] += "   (more than planned)"
    lines.append(
        f"{'pass seconds':<14}{'':>12}{seconds:>12.1f}   "
        f"({nbytes / max(seconds, 1e-9) / 1e6:.0f} MB/s)"
    )
    return lines


def genotype_numbers(result: Any) -> dict[str, Any]:
    """Eigenvalues, significance and pruning of a GenotypePCA, JSON-ready; {} for other models."""
    if not isinstance(result, GenotypeComponents):
        return {}
    numbers: dict[str, Any] = {"eigenvalues": result.eigenvalues.tolist()}
    try:
        numbers["tracy_widom_p"] = result.tracy_widom().p_value[: result.n_components].tolist()
    except InvalidInputError as error:
        numbers |= {"tracy_widom_p": None, "tracy_widom_not_computed": str(error)}
    projected = None if result.fitted is None else int(np.count_nonzero(~result.fitted))
    chosen = {name: result.settings.get(name) for name in ("ld", "unrelated")}
    return numbers | {"projected": projected, "findings": result.findings()} | chosen


def genotype_lines(result: Any) -> list[str]:
    """Eigenvalues and significance as usual in genetics, and the variants left out, as text."""
    if not isinstance(result, GenotypeComponents):
        return []
    values = result.eigenvalues
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
    lines += projected_line(result)
    if result.missing is not None:
        cells = max(result.n_samples * result.n_features, 1)
        lines.append(f"{result.missing.sum() / cells:.3%} of the calls were missing")
    return lines


def projected_line(result: GenotypeComponents) -> list[str]:
    """How many samples were projected on the components of others, and why, in a line."""
    divided, n = result.settings.get("unrelated") or {}, len(result.labels.samples)
    why = "not among the samples to fit"
    if divided.get("method") == "PC-AiR":
        why = (
            f"related ({divided['estimator']} kinship above {divided['kinship_threshold']:.4g}"
            + (f", {divided['variants']} variants" if divided["variants"] else "")
            + "; PC-AiR)"
        )
    if result.fitted is None:
        return [f"none of {n} samples were projected: no two are {why}"] if divided else []
    return [f"{np.count_nonzero(~result.fitted)} of {n} samples were projected: {why}"]


def left_out(counts: dict[str, dict[str, int]]) -> str:
    """How much of the source was not used, by cause, as text."""
    lines = []
    for axis, causes in counts.items():
        gone = [
            f"{number} {CAUSES[name]}"
            for name, number in causes.items()
            if name in CAUSES and number
        ]
        lines.append(
            f"{axis:<10} {causes['used']} of {causes['source']} used; "
            f"left out: {', '.join(gone) or 'none'}"
        )
    return "\n".join(lines)


def print_damage(history: History) -> None:
    """Name the damaged parts of a model store on stderr."""
    for text in [*history.damage.values(), *filter(None, [history.unsure])]:
        announce(text, logging.WARNING)


def describe(result: Any) -> str:
    """A saved result as text: spectrum, settings, source and cost."""
    provenance = result.provenance
    lines = [str(result), ""]
    if result.plan.get("solver"):  # a model updated by appended rows has no plan
        lines.append(f"solver     {result.plan['solver']}: {result.plan.get('reason', '-')}")
    lines.append(f"settings   {json_of(result.options_used)}")
    lines += preprocessing_line(result)
    own = genotype_lines(result)
    lines += [*own, *result.findings()] if own else [*result.notes(), *sampling_lines(result)]
    cost = f"{provenance.get('reads', 0)} chunk reads, {provenance.get('seconds', 0):.1f} s"
    known = str(provenance.get("source", ""))[:16]
    lines.append(f"source     {known}, {cost}" if known else f"cost       {cost}")
    versions = provenance.get("versions", {})
    lines.append("made with  " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    return "\n".join(lines)


def summary(model: Any) -> dict[str, Any]:
    """The result of a fit, its plan and its cost, JSON-ready."""
    result = model.result_
    return {**result.summary(), **genotype_numbers(result)}
