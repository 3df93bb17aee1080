"""What README.md promises of the command line exists: its lines, and its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from streampca.cli.commands import build_parser

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
IN_TEXT = re.findall(r"`([^`\n]*(?:\n[^`\n]+)?)`", BLOCK.sub("", README))
OF_OTHERS = {"--pca", "--sgkit-python", "--timeout"}  # plink2's, and those of benchmark scripts


def commands() -> list[str]:
    """Every line that calls ``streampca``, of the shell blocks and within the text."""
    lines = [line for kind, block in BLOCK.findall(README) if kind == "sh"
             for line in block.splitlines()]  # fmt: skip
    lines += [" ".join(words.split()) for words in IN_TEXT]
    parts = [part.split(" #")[0].strip() for line in lines for part in line.split("&&")]
    return [part for part in parts if re.match(r"(\S*/)?streampca ", part)]


def parsers() -> dict[str, Any]:
    """The parser of every command."""
    return build_parser()._subparsers._group_actions[0].choices


@pytest.mark.parametrize("line", commands())
def test_the_real_parser_takes_the_line(line):
    _, *words = shlex.split(line)
    if len(words) == 2 and words[1].startswith("--"):  # `streampca project --loadings`: no line
        assert words[1] in parsers()[words[0]]._option_string_actions
    else:
        assert callable(build_parser().parse_args(words).run)


def test_every_option_in_the_text_is_one():
    known = {option for one in parsers().values() for option in one._option_string_actions}
    said = {word for text in IN_TEXT for word in re.findall(r"(?<!\S)--[a-z][\w-]*", text)}
    assert said - OF_OTHERS <= known
    assert {"--weights", "--remove", "--ld-r2"} <= said
    assert len(commands()) > 15
