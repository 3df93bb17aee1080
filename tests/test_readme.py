"""README.md and the documentation of the packages: their commands, options and links exist."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import yaml

import streampca
from streampca.cli.commands import build_parser
from streampca.models.contract.registry import all_kinds
from tests import cover
from tests.each import each

ROOT = Path(__file__).parents[1]
TOPICS = (
    "cli",
    "sources",
    "preprocess",
    "models",
    "models.pca",
    "models.completion",
    "genetics",
    "operations",
    "passes",
)
PAGES = {
    "README.md": (ROOT / "README.md").read_text(),
    "notebooks/README.md": (ROOT / "notebooks" / "README.md").read_text(),
    **{
        f"streampca.{name}": inspect.getdoc(importlib.import_module(f"streampca.{name}")) or ""
        for name in TOPICS
    },
}
EVIDENCE = (
    "notebooks/README.md",
    "streampca/README.md",
    "tests/benchmarks/README.md",
    "tests/faults/README.md",
    "tests/operations/README.md",
)
TEXT = "\n\n".join(PAGES.values())
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
IN_TEXT = re.findall(r"`([^`\n]*(?:\n[^`\n]+)?)`", BLOCK.sub("", TEXT))
VERSIONED = ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", ".github/conda/recipe.yaml")
OF_OTHERS = {"--pca"}  # plink2's


def commands() -> list[str]:
    """Every line that calls ``streampca``, of the shell blocks and within the text."""
    lines = [
        line for kind, block in BLOCK.findall(TEXT) if kind == "sh" for line in block.splitlines()
    ]
    lines += [" ".join(words.split()) for words in IN_TEXT]
    parts = [part.split(" #")[0].strip() for line in lines for part in line.split("&&")]
    return [part for part in parts if re.match(r"(\S*/)?streampca ", part)]


def parsers() -> dict[str, Any]:
    """The parser of every command."""
    return build_parser()._subparsers._group_actions[0].choices


@each("line", commands())
def test_the_real_parser_takes_the_line(line):
    _, *words = shlex.split(line)
    if len(words) == 2 and words[1].startswith("--"):  # `streampca project --loadings`: no line
        assert words[1] in parsers()[words[0]]._option_string_actions
    else:
        assert callable(build_parser().parse_args(words).run)


def test_every_option_in_the_text_is_one():
    nested = [one._subparsers for one in parsers().values() if one._subparsers is not None]
    inner = [one for n in nested for one in n._group_actions[0].choices.values()]
    every = [*parsers().values(), *inner]
    known = {option for one in every for option in one._option_string_actions}
    said = {word for text in IN_TEXT for word in re.findall(r"(?<!\S)--[a-z][\w-]*", text)}
    assert said - OF_OTHERS <= known
    assert {"--weights", "--remove", "--ld-r2"} <= said
    assert len(commands()) > 15


def test_the_readme_is_one_page() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150


def guides() -> dict[str, str]:
    """What each guide says in words."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        words = ["".join(one["source"]) for one in cells if one["cell_type"] == "markdown"]
        found[path.name] = "\n\n".join(words)
    return found


def test_no_sentence_stands_twice() -> None:
    pages = {**PAGES, **{one: (ROOT / one).read_text() for one in EVIDENCE}, **guides()}
    prose = [BLOCK.sub("", re.sub(r"^\|.*$", "", page, flags=re.M)) for page in pages.values()]
    sentences = [
        " ".join(sentence.split())
        for page in prose
        for paragraph in page.split("\n\n")
        for sentence in re.split(r"(?<=[.:;])\s", paragraph)
    ]
    found = Counter(sentence for sentence in sentences if len(sentence) > 40)
    assert len(found) > 400
    assert [sentence for sentence, times in found.items() if times > 1] == []


@pytest.mark.parametrize("page", ["README.md", *EVIDENCE])
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_guide_has_a_row() -> None:
    rows = [line for line in PAGES["README.md"].splitlines() if "| `streampca " in line]
    guides = [path.name for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert [name for name in guides if f"(notebooks/{name}) |" not in " ".join(rows)] == []


def test_every_method_has_a_row() -> None:
    methods = {name for name, kind in all_kinds().items() if kind.__module__[:10] == "streampca."}
    first = re.findall(r"^\| (`.*?) \|", PAGES["README.md"], re.M)
    told = set(re.findall(r"`(\w+)`", " ".join(first)))
    assert len(methods) > 12
    assert methods <= told <= set(streampca.__all__)


def test_the_version_is_that_of_pyproject_everywhere() -> None:
    text = {name: (ROOT / name).read_text(encoding="utf-8") for name in VERSIONED}
    wanted = re.search(r'^version = "(.*)"', text["pyproject.toml"], re.M)[1]
    assert re.search(r"^version: (.*)", text["CITATION.cff"], re.M)[1] == wanted
    assert re.search(r"^  version: (.*)", text[".github/conda/recipe.yaml"], re.M)[1] == wanted
    assert re.findall(r"^## (.*)", text["CHANGELOG.md"], re.M)[:2] == ["Unreleased", wanted]


def test_the_recipe_needs_what_the_package_needs() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / ".github" / "conda" / "recipe.yaml").read_text())
    plain = {re.sub(r"\[.*\]", "-core", one) for one in declared["dependencies"]}
    run = {one.replace(" ", "") for one in recipe["requirements"]["run"]}
    assert run == plain | {f"python{declared['requires-python']}"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::streampca.errors.DroppedFeaturesWarning")
@pytest.mark.filterwarnings("ignore::streampca.errors.RelatedSamplesWarning")
def test_the_picture_can_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_data: Path
) -> None:
    monkeypatch.setattr(cover, "PICTURE", tmp_path / "picture.png")
    with matplotlib.rc_context({"backend": "agg"}):
        cover.main()
    assert cover.PICTURE.stat().st_size > 20_000
