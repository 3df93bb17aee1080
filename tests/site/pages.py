"""The sources of the site, in a folder for Sphinx: ``notebooks/site`` and what is made for it.

A page says ``<!-- made: NAME ARGUMENT -->`` where a maker's text goes. Links of the pages of the
repository lead to the pages that are made of their targets; a file that is no page becomes one that
shows it. A public name in backquotes is a link to its page.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.site import reference
from tests.site.docstring_rst import as_rst

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "notebooks" / "site"
TOPICS = "sources preprocess models models.pca models.completion genetics operations passes".split()
OF_REPOSITORY = {  # a file or folder -> its page
    "README.md": "index",
    "CHANGELOG.md": "changes",
    ".github/CONTRIBUTING.md": "contributing",
    ".github/SECURITY.md": "security",
    "configs": "reference/job-files",
    "notebooks/README.md": "guides/index",
    "streampca/README.md": "architecture",
    "streampca/PARAMETERS.md": "reference/parameters",
    "tests/benchmarks/README.md": "evidence/benchmarks",
    "tests/conformance/README.md": "evidence/known-answers",
    "tests/faults/README.md": "evidence/faults",
    "tests/faults": "evidence/faults",
    "tests/operations/README.md": "evidence/refresh",
    "tests/validation/README.md": "evidence/validation",
}
MADE = re.compile(r"^<!-- made: (\w+)(?: (.+?))? -->$", re.M)
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?:|mailto:|#|/)([^)#\s]+)(#[^)\s]*)?\)")
NAME = re.compile(r"(?<![`\[\w{}])`([A-Za-z][\w.]*)`(?![`\]])")
LEXERS = {".yaml": "yaml", ".py": "python", ".json": "json"}


class Site:
    """The folder of sources, and what has been written to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = reference.public()
        self.shown: set[str] = set()  # files of the repository that are shown as they are

    def write(self, page: str, text: str) -> None:
        """A page, by its name with the suffix."""
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def markdown(self, page: str, text: str, source: str) -> None:
        """A page of Markdown, with its makers, links and names; source : the file it comes from."""
        if source.startswith("notebooks/site/"):
            text = MADE.sub(lambda m: MAKERS[m[1]](self, m[2] or ""), text)
        parts = FENCED.split(text)
        for i in range(0, len(parts), 2):
            parts[i] = LINK.sub(lambda m: self.link(m, source), parts[i])
            parts[i] = NAME.sub(self.reference, parts[i])
        self.write(page, "".join(parts))

    def link(self, found: re.Match[str], source: str) -> str:
        """A link whose target is the page made of what it led to in the repository."""
        words, target, anchor = found[1], found[2], found[3] or ""
        if source.startswith("notebooks/site/"):
            return found[0]
        place = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if words.startswith("!"):
            shutil.copyfile(ROOT / place, self.folder / Path(place).name)
            return f"{words}(/{Path(place).name})"
        return f"{words}(/{self.page_of(place)}{anchor})"

    def page_of(self, place: str) -> str:
        """The page of a file or folder of the repository."""
        if place in OF_REPOSITORY:
            return OF_REPOSITORY[place] + ".md"
        if place.startswith("notebooks/site/"):
            return place.removeprefix("notebooks/site/")
        if place.startswith("notebooks/"):
            return f"guides/{Path(place).name}"
        if (ROOT / place).is_dir():
            self.shown |= {str(one.relative_to(ROOT)) for one in (ROOT / place).iterdir()}
            return OF_REPOSITORY[place.partition("/")[0]] + ".md"
        self.shown.add(place)
        return f"files/{place}.md"

    def reference(self, found: re.Match[str]) -> str:
        """A link to the page of a public name."""
        name = found[1].removeprefix("streampca.")
        is_word = name == found[1] and name.islower() and "_" not in name  # such as `open`
        if name not in self.names or is_word:
            return found[0]
        return f"{{py:obj}}`{found[1]} <streampca.{name}>`"


# -- makers: what <!-- made: NAME ARGUMENT --> stands for --------------------------------


def readme(site: Site, titles: str) -> str:
    """Sections of README.md by their titles; ``-`` is what stands before the first."""
    sections = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.M)
    found = {one.partition("\n")[0]: one.partition("\n")[2] for one in sections[1:]}
    if titles == "-":
        text = sections[0].partition("\n")[2]
    else:
        text = "".join(f"## {one}\n{found[one]}\n" for one in titles.split("; "))
    return LINK.sub(lambda m: site.link(m, "README.md"), text)


def listing(site: Site, argument: str) -> str:
    """Links to all pages of a folder; those that are named after it come first, in that order."""
    folder, *names = argument.split()
    names += sorted({one.stem for one in (PAGES / folder).glob("*.md")} - {"index", *names})
    heads = [(PAGES / folder / f"{name}.md").read_text().partition("\n")[0] for name in names]
    rows = [f"- [{head.removeprefix('# ')}]({name}.md)" for head, name in zip(heads, names)]
    return "\n".join([*rows, "", "```{toctree}", ":hidden:", "", *names, "```"])


def gallery(site: Site, _: str) -> str:
    """A card for each guide: its last picture, its question and its data."""
    index = (ROOT / "notebooks" / "README.md").read_text()
    cards = ["::::{grid} 1 2 3 3", ":gutter: 3", ""]
    names = []
    for name, question, data in re.findall(
        r"^\| \[[\w-]+\]\(([\w-]+)\.ipynb\) \| (.*?) \| (.*?) \|", index, re.M
    ):
        names.append(name)
        picture = pictures(json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text()))[-1]
        path = site.folder / "guides" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(base64.b64decode(picture))
        cards += [f":::{{grid-item-card}} {question}", f":link: {name}", ":link-type: doc"]
        cards += [f":img-top: {name}.png", f":img-alt: The last picture of the guide {name}", ""]
        cards += [data, ":::", ""]
    names += sorted(path.stem for path in texts())  # guides without code
    more = [f"- [{path.read_text().partition(chr(10))[0][2:]}]({path.name})" for path in texts()]
    toctree = ["```{toctree}", ":hidden:", "", *names, "```"]
    return "\n".join([*cards, "::::", "", *more, "", *toctree])


def texts() -> list[Path]:
    """Pages beside the notebooks."""
    return [path for path in (ROOT / "notebooks").glob("*.md") if path.stem != "README"]


def pictures(notebook: dict[str, Any]) -> list[str]:
    """Every PNG of a notebook, in base64."""
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
    found = [out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {})]
    return ["".join(one) for one in found]


def facts(site: Site, names: str) -> str:
    """What the docstrings of classes or functions say of cost and source, and links to them."""
    parts = []
    for name in names.split(", "):
        lines = as_rst(inspect.getdoc(site.names[name]) or "")
        told = [one for one in lines if one.startswith(("**Cost", "**Source"))]
        if ".. rubric:: Cost" in lines:
            below = [one for one in lines[lines.index(".. rubric:: Cost") + 1 :] if one]
            told.insert(0, f"**Cost:** {below[0]}")
        text = "\n\n".join([f"**API:** :py:obj:`streampca.{name}`", *told])
        parts.append(f"```{{eval-rst}}\n{text}\n```")
    return "\n\n".join(parts)


def job_file_examples(site: Site, _: str) -> str:
    """Links to the files in configs/, and what each begins with."""
    paths = sorted(one for one in (ROOT / "configs").rglob("*") if one.is_file())
    rows = []
    for path in paths:
        place = str(path.relative_to(ROOT))
        rows.append(f"- [{place}](/{site.page_of(place)})")
    return "\n".join(rows)


def citation(site: Site, _: str) -> str:
    """CITATION.cff for BibTeX."""
    known = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = " and ".join(f"{{{one['name']}}}" for one in known["authors"])
    fields = {"title": known["title"], "author": authors, "version": known["version"]}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    return "\n".join(["```bibtex", "@software{streampca,", *lines, "}", "```"])


MAKERS: dict[str, Callable[[Site, str], str]] = {
    "readme": readme,
    "listing": listing,
    "gallery": gallery,
    "facts": facts,
    "job_files": lambda site, _: reference.job_files(),
    "job_file_examples": job_file_examples,
    "errors": lambda site, _: reference.error_tables(),
    "citation": citation,
    "validation": lambda site, _: validation(),
    "topics": lambda site, _: topics(),
}


def validation() -> str:
    """A link to the page of comparisons with other tools, once there is one."""
    if not (ROOT / "tests" / "validation" / "README.md").exists():
        return ""
    link = "- [Validation](validation.md): each method beside the program that people trust"
    return f"{link}\n\n```{{toctree}}\n:hidden:\n\nvalidation\n```"


def topics() -> str:
    """Links to the pages of the rooms."""
    rows = [f"- [streampca.{name}](../topics/{name}.md): {title_of(name)}" for name in TOPICS]
    names = [f"/topics/{name}" for name in TOPICS]
    return "\n".join([*rows, "", "```{toctree}", ":hidden:", "", *names, "```"])


def title_of(name: str) -> str:
    """The first sentence of the documentation of a room."""
    doc = inspect.getdoc(importlib.import_module(f"streampca.{name}")) or ""
    return doc.partition("\n")[0].split(". ")[0].rstrip(".")


# -- all of it -----------------------------------------------------------------------


def notebook(site: Site, path: Path) -> str:
    """A guide in which each picture has a text, for those who do not see it: its heading."""
    guide = json.loads(path.read_text())
    heading = path.stem
    for cell in guide["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = next(iter(re.findall(r"^#+ (.*)", text, re.M)[::-1]), heading)
            cell["source"] = LINK.sub(lambda m: site.link(m, f"notebooks/{path.name}"), text)
        else:
            cell["metadata"]["mystnb"] = {"image": {"alt": f"Picture: {heading}"}}
    return json.dumps(guide)


def write(folder: Path, only: Callable[[str], bool]) -> None:
    """Write the sources.  only : which pages."""
    site = Site(folder)
    for path in sorted(PAGES.rglob("*.md")):
        page = str(path.relative_to(PAGES))
        if only(page):
            site.markdown(page, path.read_text(), f"notebooks/site/{page}")
    shutil.copytree(PAGES / "static", folder / "static")
    for place, page in OF_REPOSITORY.items():
        made = place.endswith(".md") and not (PAGES / f"{page}.md").exists()
        if made and (ROOT / place).exists() and only(page):
            site.markdown(f"{page}.md", (ROOT / place).read_text(), place)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if only(f"guides/{path.stem}"):
            site.write(f"guides/{path.name}", notebook(site, path))
    for path in texts():
        if only(f"guides/{path.stem}"):
            site.markdown(f"guides/{path.name}", path.read_text(), f"notebooks/{path.name}")
    for name in TOPICS:
        doc = inspect.getdoc(importlib.import_module(f"streampca.{name}")) or ""
        text = f"# streampca.{name}\n\n{doc.partition(chr(10))[0]}\n\n"
        if only(f"topics/{name}"):
            site.markdown(f"topics/{name}.md", text + doc.partition("\n\n")[2], "topics")
    if only("api/index"):
        site.write("api/index.md", reference.api_index())
    for name, one in site.names.items():
        if only(f"api/{name}"):
            site.write(f"api/{name}.rst", reference.api_page(name, one))
    if only("commands/index"):
        index = "commands/index.md"
        site.markdown(index, reference.command_index(), f"notebooks/site/{index}")
    for name, text, parser in reference.commands():
        if only(f"commands/{name}"):
            site.write(f"commands/{name}.md", reference.command_page(name, text, parser))
    if not only("index.md"):
        site.write("index.md", "# A part\n\n```{toctree}\n:glob:\n\n**\n```\n")
    for place in sorted(site.shown):
        site.write(f"files/{place}.md", file_page(place))


def file_page(place: str) -> str:
    """A file of the repository as a page; it is found by links, not by search."""
    kind = LEXERS.get(Path(place).suffix, "text")
    text = (ROOT / place).read_text()
    return f"---\norphan: true\nnosearch: true\n---\n\n# {place}\n\n``````{kind}\n{text}\n``````\n"
