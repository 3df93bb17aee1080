"""Pages of the reference, from what declares a thing: classes, parsers, sections, errors."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import streampca
from streampca import cli, errors
from streampca.cli.commands import EXAMPLES, build_parser
from streampca.cli.failures import KINDS
from streampca.operations.sections import OPTIONAL, SECTIONS, Entry
from streampca.xarray import StreampcaAccessor
from tests.docstrings import MODULES, members

# The rooms whose public names stand together; the first that fits counts.
GROUPS = {
    "models.pca": "Principal components",
    "models.sparse": "Principal components",
    "models.explore": "How sure, how many, what is unusual",
    "certification": "How sure, how many, what is unusual",
    "models.completion": "Missing values and latent variables",
    "models.latent": "Missing values and latent variables",
    "models.two_views": "Two views, regression",
    "models.regression": "Two views, regression",
    "models.eof": "Fields in time",
    "models.kernel": "Kernels",
    "models.text": "Texts",
    "genetics": "Genotypes",
    "preprocess": "Preprocessing",
    "models.side_data": "Preprocessing",
    "models.decompose": "Covariances",
    "embedding": "Embeddings",
    "plots": "Pictures",
    "xarray": "The accessor of xarray",
    "model_store": "Models on disk",
    "sources": "Sources",
    "": "Matrices, passes, results",
}


def public() -> dict[str, Any]:
    """Every public class and function, once, by the name that its page has."""
    found = {name: getattr(streampca, name) for name in streampca.__all__}
    for room in MODULES:
        module = getattr(streampca, room)
        found |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    found["da.streampca"] = StreampcaAccessor
    first = {id(one): name for name, one in reversed(found.items()) if callable(one)}
    return {name: found[name] for name in reversed(first.values())}


def first_sentence(one: Any) -> str:
    """Of its docstring, on one line, for a table of Markdown."""
    paragraph = (inspect.getdoc(one) or "").split("\n\n")[0]
    return " ".join(paragraph.split()).split(". ")[0].rstrip(".:").replace("|", r"\|") + "."


def api_page(name: str, one: Any) -> str:
    """A page of reStructuredText: autodoc reads the docstrings."""
    full = f"streampca.{name}" if name != "da.streampca" else "streampca.xarray.StreampcaAccessor"
    lines = [name, "=" * len(name), "", ".. currentmodule:: streampca", ""]
    if inspect.isclass(one):
        shown = ", ".join(member for member, _, _ in members(one))
        lines += [f".. autoclass:: {full}", f"   :members: {shown}"]
    else:
        lines += [f".. autofunction:: {full}"]
    return "\n".join([*lines, ""])


def api_index() -> str:
    """Tables of all names, a table for each kind of thing."""
    tables: dict[str, list[str]] = {}
    for name, one in public().items():
        home = "xarray" if name == "da.streampca" else one.__module__.removeprefix("streampca.")
        room = name.partition(".")[0]
        title = next(
            title for start, title in GROUPS.items() if home.startswith(start) or room == start
        )
        tables.setdefault(title, []).append(f"| [`{name}`]({name}.rst) | {first_sentence(one)} |")
    parts = [
        "# API",
        "Every public name has a page with its parameters, cost, errors, source and an example.",
    ]
    for title in dict.fromkeys(GROUPS.values()):
        if title in tables:
            parts += [
                f"## {title}",
                "\n".join(["| name | what it is |", "|---|---|", *tables[title]]),
            ]
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *public(), "```"])
    return "\n\n".join(
        [*parts, "Errors and warnings have [a page of their own](../errors.md).", toctree, ""]
    )


# -- the command line ----------------------------------------------------------------


def commands() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(name, what it does, parser) of every command."""
    parser = build_parser()
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = {one.dest: one.help or "" for one in action._choices_actions}
    yield from ((name, texts[name], one) for name, one in action.choices.items())


def command_index() -> str:
    """The table of commands."""
    rows = [f"| [`{name}`]({name}.md) | {text} |" for name, text, _ in commands()]
    names = [name for name, _, _ in commands()]
    return "\n\n".join(
        [
            "# Command line",
            (inspect.getdoc(cli) or "").partition("\n\n")[2],
            "\n".join(["| command | what it does |", "|---|---|", *rows]),
            "[Exit codes](../errors.md#exit-codes) say how a command ended.",
            "\n".join(["```{toctree}", ":hidden:", "", *names, "```", ""]),
        ]
    )


def command_page(name: str, text: str, parser: argparse.ArgumentParser) -> str:
    """Usage, examples and all options of a command and of those under it."""
    examples = "\n".join(f"streampca {one}" for one in EXAMPLES[name])
    head = [f"# streampca {name}", f"{text[:1].upper()}{text[1:]}.", f"```sh\n{examples}\n```"]
    return "\n\n".join([*head, *sections(parser), ""])


def sections(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Tables of the options of a parser, by their groups; then those of its commands."""
    formatter = parser._get_formatter()
    inner: list[argparse.ArgumentParser] = []
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                inner += action.choices.values()
            elif action.help != argparse.SUPPRESS:
                rows.append(f"{spelled(formatter, action)}\n: {meaning(formatter, action)}")
        if rows:
            title = (group.title or "options").replace("positional arguments", "arguments")
            yield (
                f"## {parser.prog.partition(' ')[2]}: {title}"
                if parser.prog.count(" ") > 1
                else (f"## {title[:1].upper()}{title[1:]}")
            )
            yield "\n\n".join(rows)
    for one in inner:
        yield from sections(one)


def spelled(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    """An option with what it takes, as ``--help`` spells it."""
    if not action.option_strings:
        return f"`{formatter._metavar_formatter(action, action.dest)(1)[0]}`"
    takes = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ""
    names = ", ".join(f"`{one}`" for one in action.option_strings)
    return f"{names} `{takes}`".removesuffix(" ``")


def meaning(formatter: argparse.HelpFormatter, action: argparse.Action) -> str:
    """Its help."""
    return plain(formatter._expand_help(action)) if action.help else "\\"


def plain(text: str) -> str:
    """Text of a help as Markdown that shows it as it is."""
    for one in "\\`*_|<[$":
        text = text.replace(one, f"\\{one}")
    return " ".join(text.split())


# -- job files, errors ---------------------------------------------------------------


def entries(table: Mapping[str, Entry], before: str = "") -> Iterator[str]:
    """Rows of the entries of a section; an object's own entries follow it."""
    for name, entry in table.items():
        kinds = " or ".join(entry.kinds)
        values = ", ".join(f"`{one}`" for one in entry.choices) or kinds
        default = (
            "required" if entry.required else "" if entry.default is None else f"`{entry.default}`"
        )
        yield f"| `{before}{name}` | {plain(entry.meaning)} | {values} | {default} |"
        yield from entries(entry.inner or {}, f"{before}{name}.")


def job_files() -> str:
    """Tables of every section of a job file."""
    parts = []
    for name, table in SECTIONS.items():
        optional = " (optional)" if name in OPTIONAL else ""
        parts += [f"## `{name}:`{optional}" if name else "## At the top"]
        rows = ["| entry | meaning | values | default |", "|---|---|---|---|", *entries(table)]
        parts += ["\n".join(rows)]
    return "\n\n".join(parts)


def error_tables() -> str:
    """Errors with their exit codes, and warnings."""
    own = [one for one in vars(errors).values() if inspect.isclass(one)]
    raised = [one for one in own if issubclass(one, errors.StreamPCAError)]
    warned = [one for one in own if issubclass(one, Warning)]
    rows = []
    for one in raised:
        code, kind = next((c, k) for cls, c, k in errors.EXIT if issubclass(one, cls))
        also = ", ".join(f"`{b.__name__}`" for b in one.__bases__)
        rows.append(
            f"| `{one.__name__}` | {first_sentence(one)} Is also: {also}. | {code} `{kind}` |"
        )
    parts = [
        "## Errors",
        "\n".join(["| error | meaning | exit code, kind |", "|---|---|---|", *rows]),
        "## Exit codes",
        f"```text\n{KINDS[:1].upper()}{KINDS[1:]}\n```",
        "## Warnings",
        "\n".join(
            ["| warning | meaning |", "|---|---|"]
            + [f"| `{one.__name__}` | {first_sentence(one)} |" for one in warned]
        ),
    ]
    return "\n\n".join(parts)
