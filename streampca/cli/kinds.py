"""``--model NAME``: options for any registered kind of model, made from its parameters."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.config import load_config
from streampca.cli.fields import add_field, option_of
from streampca.cli.info import report, summary
from streampca.cli.options import (
    COMPONENTS,
    open_source,
    planned_counts,
    prepared_counts,
    print_fit,
    print_plan,
    print_planned,
    progress_of,
)
from streampca.cli.outputs import check_outputs, score_paths, write_both, write_scores
from streampca.errors import InvalidInputError, StreamPCAError, nearest
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.registry import all_kinds, kind_named
from streampca.operations.config import build
from streampca.passes import Plan

ROTATED = ("PCA", "IncrementalPCA", "TruncatedSVD")  # whose scores are those of projections
UNSET = object()  # the value of an absent option, since None is a value
# options of all commands, and what a command does anyhow
ELSEWHERE = ("missing_value", "memory_limit", "scheduler", "threads", "progress")


def option_name(kind: str) -> str:
    """``kernel-pca`` for ``KernelPCA``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()


def kind_wanted(text: str) -> str:
    """The registered kind that ``--model`` names. Raises InvalidInputError."""
    known = all_kinds()
    names = {option_name(kind): kind for kind in known}
    found = names.get(text.lower()) or (text if text in known else None)
    if found is None:
        raise InvalidInputError(
            f"--model {text!r:.80}; expected one of {', '.join(sorted(names))}"
            f"{nearest(text, names)}"
        )
    return found


def named_kind(argv: Sequence[str]) -> str | None:
    """The kind that a command line or its options file names; None for PCA or GenotypePCA."""
    if not argv or argv[0] not in ("fit", "plan"):
        return None  # in other commands --model is a path
    scan = Parser(f"streampca {argv[0]}", f"streampca {argv[0]} ...", add_help=False)
    scan.add_argument("--model")
    scan.add_argument("--config")
    found = scan.parse_known_args([one for one in argv if one != "--"])[0]
    text = found.model
    if text is None and found.config is not None:
        text = load_config(found.config)[0].get("model")
    return None if text is None else kind_wanted(str(text))


def kind_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add an option for each parameter of a kind, after all other options.

    If the command has an option of that name, such as ``--scores``, it is ``--model-scores``.
    """
    cls = kind_named(kind)
    for name, parameter in cls.parameters.items():
        if name in ELSEWHERE or parameter.inert:
            continue
        option = option_of(name, parameter)
        flags = ["-k", option] if parameter.counts_components else [option]
        own: dict[str, Any] = {} if isinstance(parameter.default, bool) else {"default": UNSET}
        try:
            add_field(parser, cls, name, flags=flags, **own)
        except argparse.ArgumentError:
            flags = [option.replace("--", "--model-", 1)]
            add_field(parser, cls, name, flags=flags, dest=f"model_{name}", **own)


def sources_of_kind(arguments: argparse.Namespace, counts: Any) -> list[ChunkedMatrix]:
    """The matrix that a kind of model takes, or the two of a kind of two views, a source each."""
    if kind_named(arguments.kind).views == 1:
        matrix = open_source(arguments)
        return [counts(arguments, matrix) if "log1p" in arguments else matrix]
    return two_sources(arguments, f"--model {option_name(arguments.kind)}")


def two_sources(arguments: argparse.Namespace, who: str) -> list[ChunkedMatrix]:
    """A matrix for each of two sources.  who : asks for them, for messages."""
    paths = list(arguments.source)
    if len(paths) != 2:
        raise InvalidInputError(f"{who} takes two sources, X and Y; here are {len(paths)}")
    return [open_source(argparse.Namespace(**{**vars(arguments), "source": [p]})) for p in paths]


def model_of_kind(arguments: argparse.Namespace, *matrices: ChunkedMatrix) -> tuple[Any, Plan]:
    """The unfitted estimator of the options, and its plan for the matrix, or for both views.

    Raises InvalidInputError, also for values of a wrong type.
    """
    _check_rotation(arguments)
    values: dict[str, Any] = {"progress": progress_of(arguments)}
    parameters = kind_named(arguments.kind).parameters
    for name, parameter in parameters.items():
        value = getattr(arguments, f"model_{name}", getattr(arguments, name, UNSET))
        if name in ELSEWHERE:
            value = UNSET if value is None else value
        elif parameter.counts_components and value == "all":
            value = None
        elif name == "n_components" and value is UNSET and parameter.default is None:
            value = min(COMPONENTS, *(size for matrix in matrices for size in matrix.shape))
        if name != "progress" and value is not UNSET:
            values[name] = value
    try:
        model = build(arguments.kind, {n: v for n, v in values.items() if n in parameters})
        return model, model.plan(*matrices)
    except StreamPCAError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidInputError(
            f"an option of --model {option_name(arguments.kind)} has a value of a wrong type: "
            f"{error}"
        ) from error


def _check_rotation(arguments: argparse.Namespace) -> None:
    """Raise InvalidInputError for --rotate of a kind whose components it cannot turn."""
    if arguments.rotate and arguments.kind not in ROTATED:
        known = ", ".join(map(option_name, ROTATED))
        own = "rotation" in kind_named(arguments.kind).parameters
        raise InvalidInputError(
            f"--rotate does not go with --model {option_name(arguments.kind)}; "
            + (f"say --rotation {arguments.rotate}" if own else f"it goes with {known}")
        )


def run_plan_of_kind(arguments: argparse.Namespace) -> int:
    """``streampca plan --model NAME``: print what a fit would do."""
    matrices = sources_of_kind(arguments, planned_counts)
    print_planned(arguments, model_of_kind(arguments, *matrices)[1], *matrices)
    return 0


def run_fit_of_kind(arguments: argparse.Namespace) -> int:
    """``streampca fit --model NAME``: fit, report, save."""
    scores = score_paths(arguments.scores, kind_named(arguments.kind).scored_views)
    check_outputs(
        models=[arguments.output],
        scores=scores,
        sources=arguments.source,
        overwrite=arguments.overwrite,
    )
    matrices = sources_of_kind(arguments, prepared_counts)
    model, plan = model_of_kind(arguments, *matrices)
    print_plan(arguments, lambda: plan)
    model.fit(*matrices)
    model, text = rotated_and_saved(model, arguments)
    if len(scores) == 2:
        write_both(model, matrices, scores, arguments.overwrite)
    elif arguments.scores:
        write_scores(model, matrices[0], arguments.scores, arguments.overwrite)
    print_fit(arguments, lambda: summary(model), text, arguments.output, *scores)
    return 0


def rotated_and_saved(model: Any, arguments: argparse.Namespace) -> tuple[Any, str]:
    """The model, or what ``--rotate`` makes of it, saved for --output, and its report."""
    text = report(model, arguments.verbose)  # now, for the memory peak of the fit without writing
    if arguments.rotate:
        model = streampca.rotate(model, arguments.rotate)
        text = f"{text}\n\n{model.result_}\n"
    if arguments.output:
        model.save(arguments.output)
    return model, text
