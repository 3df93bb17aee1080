"""Links of a site on disk: each leads to a file and to an anchor that is there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """The anchors of a page, what it loads, and where it leads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.loads, self.leads = {""}, [], []  # type: ignore[var-annotated]
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Of each element."""
        known = dict(attrs)
        self.anchors |= {known[name] for name in ("id", "name") if known.get(name)}
        if target := known.get(LOADED.get(tag, "-")):
            self.loads.append(target)
        elif tag == "a" and (target := known.get("href")):
            self.leads.append(target)


@cache
def page(path: Path) -> Page:
    """A page, read once."""
    return Page(path)


def broken(out: Path) -> list[str]:
    """One line for each link to nothing, and for whatever is loaded from another host."""
    return [line for path in sorted(out.rglob("*.html")) for line in _wrong(out, path)]


def _wrong(out: Path, path: Path) -> Iterator[str]:
    here = path.relative_to(out)
    for target in page(path).loads:
        if urlsplit(target).scheme not in ("", "data") or target.startswith("//"):
            yield f"{here} loads {target}"
    for target in (*page(path).loads, *page(path).leads):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        found = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
        if not found.is_file():
            yield f"{here} leads to {target}, which is not there"
        elif found.suffix == ".html" and unquote(parts.fragment) not in page(found).anchors:
            yield f"{here} leads to {target}, which has no such anchor"
