"""For Sphinx: the docstrings of streampca, and formulas as MathML, which needs no script."""

from __future__ import annotations

import inspect
from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx

from tests.site.docstring_rst import as_rst


def translate(app: Sphinx, what: str, name: str, one: Any, options: Any, lines: list[str]) -> None:
    """The docstring that autodoc read, in place."""
    lines[:] = as_rst(inspect.cleandoc("\n".join(lines)))


def inline_formula(self: Any, node: Any) -> None:
    """A formula within a line."""
    self.body.append(convert(node.astext()))
    raise SkipNode


def displayed_formula(self: Any, node: Any) -> None:
    """A formula on lines of its own."""
    formula = convert(node.astext(), display="block")
    self.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", translate)
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
    app.add_css_file("site.css")
    app.add_js_file("site.js")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
