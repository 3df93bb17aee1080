"""``--model NAME``: the options of any registered kind of model, from its parameters."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

from streampca.cli.config import load_config
from streampca.cli.options import components_wanted, open_source, progress_of
from streampca.cli.outputs import check_outputs, write_scores
from streampca.cli.report import report, summary
from streampca.errors import InvalidInputError
from streampca.jobs.yaml_file import nearest, scalar
from streampca.matrix import ChunkedMatrix
from streampca.models.parameters import Parameter
from streampca.models.registry import KINDS

ELSEWHERE = ("missing_value", "memory_limit", "scheduler", "progress")  # options of all commands


def option_name(kind: str) -> str:
    """``kernel-pca`` of ``KernelPCA``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()


def kind_wanted(text: str) -> str:
    """The registered kind that ``--model`` names. Raises InvalidInputError."""
    names = {option_name(kind): kind for kind in KINDS}
    found = names.get(text.lower()) or (text if text in KINDS else None)
    if found is None:
        known = ", ".join(sorted(names))
        raise InvalidInputError(
            f"--model {text!r:.80}; expected one of {known}{nearest(text, names)}"
        )
    return found


def named_kind(argv: Sequence[str]) -> str | None:
    """The kind that a command line, or its file of options, names; None: PCA or GenotypePCA."""
    if not argv or argv[0] not in ("fit", "plan"):
        return None  # --model is a path elsewhere
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scan.add_argument("--model")
    scan.add_argument("--config")
    found = scan.parse_known_args([one for one in argv if one != "--"])[0]
    text = found.model
    if text is None and found.config is not None:
        text = load_config(found.config)[0].get("model")
    return None if text is None else kind_wanted(str(text))


def kind_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """One option for each parameter of a kind, after all others: see :func:`_add`."""
    for name, one in KINDS[kind].parameters.items():
        if name in ELSEWHERE:
            continue
        option = "--" + name.strip("_").replace("_", "-")
        words = one.meaning.replace("%", "%%")
        if isinstance(one.default, bool):
            option = option.replace("--", "--no-", 1) if one.default else option
            action = "store_false" if one.default else "store_true"
            _add(parser, [option], dest=name, action=action, help=words)
            continue
        options = ["-k", option] if one.counts_components else [option]
        shown = name.strip("_").upper()
        _add(parser, options, dest=name, type=_reader(one), metavar=shown, help=words)


def _add(parser: argparse.ArgumentParser, options: list[str], **more: Any) -> None:
    """Add an option; ``--model-scores`` where ``--scores`` is one of the command already."""
    try:
        parser.add_argument(*options, **more)
    except argparse.ArgumentError:
        more["dest"] = f"model_{more['dest']}"
        parser.add_argument(*[one.replace("--", "--model-", 1) for one in options], **more)


def _reader(one: Parameter) -> Any:
    """What makes a value of the text of an option: as YAML reads it, checked where choices are."""

    def read(text: str) -> Any:
        value = "all" if one.counts_components and text == "all" else scalar(text)
        if one.choices and value not in one.choices:
            known = ", ".join("null" if each is None else str(each) for each in one.choices)
            raise argparse.ArgumentTypeError(f"{text!r}: expected one of {known}")
        return value

    return read


def model_of_kind(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """The unfitted estimator that the options describe."""
    cls = KINDS[arguments.kind]
    chosen: dict[str, Any] = {"progress": progress_of(arguments)}
    for name, one in cls.parameters.items():
        value = getattr(arguments, f"model_{name}", getattr(arguments, name, None))
        if name == "n_components":
            chosen[name] = components_wanted(arguments, matrix)
        elif name != "progress" and value is not None:
            chosen[name] = None if one.counts_components and value == "all" else value
    return cls(**{name: value for name, value in chosen.items() if name in cls.parameters})


def run_plan_of_kind(arguments: argparse.Namespace) -> int:
    """``streampca plan --model NAME``: what a fit would do."""
    matrix = open_source(arguments)
    plan = model_of_kind(arguments, matrix).plan(matrix)
    print(plan.to_json() if arguments.json else plan)
    return 0


def run_fit_of_kind(arguments: argparse.Namespace) -> int:
    """``streampca fit --model NAME``: fit, report, save."""
    check_outputs(
        models=[arguments.output],
        arrays=[arguments.scores],
        sources=arguments.source,
        overwrite=arguments.overwrite,
    )
    matrix = open_source(arguments)
    model = model_of_kind(arguments, matrix)
    if not (arguments.json or arguments.quiet):
        print(model.plan(matrix), end="\n\n")
    model.fit(matrix)
    said = report(model)  # the peak of the fit, not of writing
    if arguments.output:
        model.save(arguments.output)
    if arguments.scores:
        write_scores(model, matrix, arguments.scores, arguments.overwrite)
    if arguments.json:
        print(json.dumps(summary(model), indent=1))
    elif not arguments.quiet:
        print(said)
        if arguments.output:
            print(f"model saved to {arguments.output}")
    return 0
