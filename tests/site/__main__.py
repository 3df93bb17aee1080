"""The site as HTML that works from disk: ``python -m tests.site OUT``.

Pages are in ``notebooks/site``; the rest is made of what the repository says of itself: docstrings,
guides with their stored outputs, parsers, recorded tables. Every link within the site is checked.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import streampca

NEEDED = (
    "sphinx",
    "pydata_sphinx_theme",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "latex2mathml",
)


def settings() -> dict[str, Any]:
    """What a conf.py would hold."""
    return {
        "project": "streampca",
        "version": streampca.__version__,
        "release": streampca.__version__,
        "extensions": [
            "sphinx.ext.autodoc",
            "sphinx_design",
            "sphinx_copybutton",
            "myst_nb",
            "tests.site.extension",
        ],
        "root_doc": "index",
        "html_theme": "pydata_sphinx_theme",
        "html_title": f"streampca {streampca.__version__}",
        "html_static_path": ["static"],
        "html_math_renderer": "mathml",
        "html_show_sourcelink": False,
        "html_copy_source": False,
        "html_show_search_summary": False,  # it would fetch pages, which a browser denies files
        "html_sidebars": {"index": [], "changes": [], "which-method": [], "architecture": []},
        "html_theme_options": {
            "navigation_depth": 2,
            "show_prev_next": False,
            "navbar_align": "left",
            "header_links_before_dropdown": 8,
            "secondary_sidebar_items": ["page-toc"],
            "footer_start": ["copyright"],
            "footer_end": [],
            "pygments_light_style": "a11y-high-contrast-light",
            "pygments_dark_style": "a11y-high-contrast-dark",
        },
        "html_context": {"default_mode": "auto"},
        "toc_object_entries_show_parents": "hide",
        "copyright": "The streampca developers, BSD-3-Clause",
        "myst_enable_extensions": ["colon_fence", "deflist", "dollarmath"],
        "myst_heading_anchors": 3,
        "nb_execution_mode": "off",
        "nb_ipywidgets_js": {},  # they would come from another host
        "autodoc_typehints": "none",
        "autodoc_member_order": "alphabetical",
        "add_module_names": False,
        "copybutton_prompt_text": r">>> |\.\.\. |\$ ",
        "copybutton_prompt_is_regexp": True,
        "suppress_warnings": ["myst.header", "mystnb.mime_priority"],
    }


def build(out: Path, only: str = "", processes: int = 1) -> int:
    """Write the site to a folder; returns the number of pages. Warnings of Sphinx are errors.

    only : a pattern of the names of pages, for a part in which links may lead to nothing.
    """
    from sphinx.application import Sphinx

    from tests.site import pages

    chosen = settings()
    if only:
        chosen["suppress_warnings"] += ["myst.xref_missing", "toc.not_readable", "toc.excluded"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        pages.write(source, lambda page: re.match(only, page) is not None)
        app = Sphinx(
            str(source),
            None,
            str(out),
            str(Path(folder, "doctrees")),
            "html",
            confoverrides=chosen,
            status=None,
            warningiserror=True,
            parallel=processes,
        )
        app.build()
        if app.statuscode:
            raise SystemExit("the site has warnings (above); they are errors")
    (out / "_static" / "webpack-macros.html").unlink()  # a template that the theme leaves there
    return sum(1 for _ in out.rglob("*.html"))


def main() -> int:
    """Build the site, check its links."""
    from tests.site import links

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder, which is written anew")
    parser.add_argument("--only", default="", help="a pattern of pages, such as 'api/PCA|theory'")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"not installed: {', '.join(lacking)}; pip install -e '.[docs]'", file=sys.stderr)
        return 69
    if out.exists() and not (out / "searchindex.js").exists() and any(out.iterdir()):
        print(f"{out} is not a site: name another folder", file=sys.stderr)
        return 73
    shutil.rmtree(out, ignore_errors=True)
    begun = time.perf_counter()
    n_pages = build(out, arguments.only, processes=1 if arguments.only else 2)
    broken = [] if arguments.only else links.broken(out)
    print(*broken, sep="\n", end="\n" if broken else "", file=sys.stderr)
    print(f"{n_pages} pages in {time.perf_counter() - begun:.0f} s: {out / 'index.html'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
