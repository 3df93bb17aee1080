"""The site: what it is made of, and, where Sphinx and a browser are installed, what comes of it."""

from __future__ import annotations

import asyncio
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

import streampca
from streampca.cli.commands import main
from tests.readme_data import write_all
from tests.report.browser import PROGRAM, Page, with_page
from tests.site import __main__ as site
from tests.site import links, reference
from tests.site.docstring_rst import as_rst
from tests.site.pages import MADE, MAKERS, PAGES, ROOT
from tests.test_readme import BLOCK, parsers

SOURCES = {str(path.relative_to(PAGES)): path.read_text() for path in sorted(PAGES.rglob("*.md"))}
HOW_TO = [name for name in SOURCES if name.startswith("how-to/") and "index" not in name]
needs_sphinx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in site.NEEDED),
    reason="no Sphinx: pip install -e '.[docs]'",
)
ASKED = "how-many-components not-determined project-new-samples how-much-memory cite".split()
LOOKED_AT = (
    "index which-method guides/index guides/03-climate how-to/index how-to/not-determined api/PCA "
    "commands/fit reference/job-files theory/solvers evidence/benchmarks search"
).split()


def test_every_public_name_has_a_page() -> None:
    names = reference.public()
    assert {getattr(one, "__name__", "") for one in names.values()} >= {
        name for name in streampca.__all__ if callable(getattr(streampca, name))
    }
    pages = {name: reference.api_page(name, one) for name, one in names.items()}
    assert len(pages) > 115
    assert "   :members: certificate_, " in pages["PCA"]


def test_docstrings_become_text_without_accidental_markup() -> None:
    doc = (
        "One.\n\nX : (n, p), components_ *here*.  dim : a|b\n    more.\nCost: one pass.\n"
        "Raises E.\n\nExamples\n--------\n>>> 1\n1\n"
    )
    assert as_rst(doc) == [
        "One.", "",
        "``X``", r"    (n, p), \ ``components_``\  \*here\*.", "", "``dim``", r"    a\|b more.", "",
        "**Cost:** one pass.", "", "**Raises:** E.", "",
        ".. rubric:: Examples", "", ">>> 1", "1", "",
    ]  # fmt: skip


def test_pages_name_makers_commands_and_options_that_exist() -> None:
    made = {found[1] for text in SOURCES.values() for found in MADE.finditer(text)}
    assert made == set(MAKERS)
    for name in HOW_TO:
        text = SOURCES[name]
        assert text.startswith("# ")
        assert name == "how-to/cite.md" or "```python" in text or "```sh" in text
        for kind, block in BLOCK.findall(text):
            for line in block.splitlines() if kind == "sh" else ():
                command, *words = shlex.split(line)[1:]
                known = parsers()[command]._option_string_actions
                assert {word for word in words if word.startswith("--")} <= set(known), line


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sources that the pages name, in which the test runs."""
    write_all(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # small data warn of much
def test_the_code_of_the_answers_runs(desk: Path) -> None:
    for name in HOW_TO:
        names: dict[str, Any] = {"streampca": streampca, "np": np}
        for kind, block in BLOCK.findall(SOURCES[name]):
            if kind == "python":
                exec(compile(block, name, "exec"), names)
        matplotlib.pyplot.close("all")


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HOW_TO)
def test_an_answer_runs_with_its_commands(desk: Path, name: str) -> None:
    names: dict[str, Any] = {"streampca": streampca, "np": np}
    for kind, block in BLOCK.findall(SOURCES[name]):
        if kind == "python":
            exec(compile(block, name, "exec"), names)
        for line in block.splitlines() if kind == "sh" else ():
            assert not main(shlex.split(line)[1:]), line


def test_links_to_nothing_and_to_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="b.html#x"></a><a href="#no"></a>'
        '<a href="https://a.org">cited</a><img src="c.png"><script src="//a.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<p id="x"><a href="a.html"></a>')
    assert links.broken(tmp_path) == [
        "a.html loads //a.org/x.js",
        "a.html leads to c.png, which is not there",
        "a.html leads to #no, which has no such anchor",
    ]


def built(out: Path, *options: str) -> Path:
    """What ``python -m tests.site`` makes."""
    subprocess.run([sys.executable, "-m", "tests.site", str(out), *options], cwd=ROOT, check=True)
    return out


@needs_sphinx
@pytest.mark.slow
def test_pages_of_each_kind_are_built(tmp_path: Path) -> None:
    out = built(tmp_path, "--only", "api/kinship|commands/prune|how-to/standardise|glossary|errors")
    assert "Manichaikul" in (out / "api" / "kinship.html").read_text()
    assert "--ld-r2" in (out / "commands" / "prune.html").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, whose links are checked by the command."""
    return built(tmp_path_factory.mktemp("site"))


@needs_sphinx
@pytest.mark.soak
def test_questions_of_a_newcomer_are_two_clicks_away(whole: Path) -> None:
    first = links.page(whole / "index.html").leads
    for (
        name
    ) in "how-many-components not-determined project-new-samples how-much-memory cite".split():
        assert f"how-to/{name}.html" in first


@needs_sphinx
@pytest.mark.soak
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium")
def test_pages_open_from_disk_and_search_finds(whole: Path, tmp_path: Path) -> None:
    async def look(page: Page) -> None:
        for name in LOOKED_AT:
            for width in (1280, 390):
                await page.open(whole / f"{name}.html", width, dark=width < 500)
                assert await page.run("document.documentElement.scrollWidth") <= width, name
                assert [one for one in page.complaints if "error" in str(one)] == [], name
                assert all(url.startswith(("file:", "data:")) for url in page.requests), name
        await page.send("Page.navigate", url=(whole / "search.html").as_uri() + "?q=kinship")
        found = "document.querySelectorAll('#search-results li a').length"
        for _ in range(100):
            if await page.run(found) > 5:  # they come one after the other
                break
            await asyncio.sleep(0.1)
        assert await page.run(found) > 5

    asyncio.run(with_page(tmp_path / "profile", look))
