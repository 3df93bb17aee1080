"""Messages name parameters as Python takes them: on a command line its options stand for them."""

from __future__ import annotations

import argparse
import ast
import re
from shlex import quote
from typing import Any

VALUE = r"""'[^']*'|"[^"]*"|\[[^]]*\]|<[^>]*>|-?\d[\d.e-]*\b|True|False|None|\.{3}|(?=[,;.\s)]|$)"""
IN_MESSAGES = re.compile(
    r"(?:streampca\.)?(?:open\w*\((?:'[^']*'|[^'=(),]*), |[A-Z]\w*\()"
    r"(?P<settings>\w+=(?:'[^']*'|\"[^\"]*\"|[^()'\"])*)\)"
    rf"|[\w.]+\([^()]*\)|(?<![\w./])(?P<name>\w+)=(?P<value>{VALUE})"
)
PHRASES = {  # calls that an option stands for
    "streampca.prune_ld(X)": "--ld-r2 0.2",
    "streampca.ComplexEOF(2).fit(X)": "--model complex-eof",
    "sample_weight=streampca.relative_weights(w)": "--relative-weights",
    "exclude='samples.txt'": "--remove samples.txt",
    "streampca.kinship(X) has": "streampca relate lists",
}


def as_options(text: str, parser: Any) -> str:
    """A message with what Python takes, ``missing='mean'``, as the options of the command.

    parser : of the command line, ``commands.Parser``.
    What the command does not take stays; of ``transform`` it may be an option of its ``fit``.
    """
    known = _options(named := parser.named or parser)
    if named.prog.endswith(" transform"):
        known = _options(parser.commands["fit"], "fit ") | known

    def said(found: re.Match[str]) -> str:
        if found["name"]:
            return _as_option(known, found["name"], found["value"]) or found[0]
        inside = IN_MESSAGES.sub(said, found["settings"] or "")
        return inside.replace(", --", " --") if inside.startswith(("--", "fit --")) else found[0]

    for call, option in PHRASES.items():
        word = option.split()[0]
        if word == "streampca" or word.strip("-").replace("-", "_") in known:
            text = text.replace(call, option)
    text = IN_MESSAGES.sub(said, text)
    return re.sub(r"streampca\.(?:Hard|Soft)Impute\b(?!\()", "streampca impute", text)


def _options(parser: argparse.ArgumentParser, before: str = "") -> dict[str, Any]:
    """Parameter -> (words before the option that sets it, the option), inner commands' too."""
    inner = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    parsers = [*(each for one in reversed(inner) for each in reversed(one.values())), parser]
    actions = [action for each in parsers for action in each._actions]
    options = [action for action in actions if action.option_strings]
    found = {option.dest: option for option in options}
    named = {option.option_strings[-1].strip("-").replace("-", "_"): option for option in options}
    return {name: (before, value) for name, value in (found | named).items()}


def _as_option(known: dict[str, Any], name: str, value: str) -> str:
    """``--missing mean`` for ``missing`` and ``'mean'``; "" where the command cannot say that."""
    name = name if name in known else name.strip("_")
    before, one = known.get(f"no_{name}" if value == "False" else name, ("", None))
    if one is None or value == "None" or (value in ("True", "False")) != (one.nargs == 0):
        return ""
    if one.nargs == 0:
        no = value == "False"
        flag = next((x for x in one.option_strings if x.startswith("--no-") == no), "")
        return flag and f"{before}{flag}"
    words = _words(value)
    free = value[:1] in ("<", ".")  # whatever the user takes
    if one.choices and not free and not {*filter(None, words)} <= {*map(str, one.choices)}:
        return ""
    if any(word.startswith("-") for word in words) and one.nargs == "+":
        said = [" --" if word == "--" else word for word in words]  # argparse drops a plain one
        return " ".join(f"{one.option_strings[-1]}={quote(word)}" for word in said)
    shown = value if free else " ".join(quote(word) for word in words if word)
    return f"{before}{one.option_strings[-1]}{'=' if value[:1] == '-' else ' '}{shown}".rstrip()


def _words(value: str) -> list[str]:
    """The words of a value as Python writes it: a list, or one."""
    try:
        written = value[:1] in ("[", "'", '"') and "..." not in value
        found = ast.literal_eval(value) if written else value
    except (SyntaxError, ValueError):
        found = value
    if found is value:
        found = re.findall(r"[^\s,\[\]'\"]+", value) if value[:1] == "[" else value.strip("'\"")
    return [str(one) for one in found] if isinstance(found, (list, tuple)) else [str(found)]
