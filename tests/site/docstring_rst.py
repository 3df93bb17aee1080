"""The docstrings of streampca as reStructuredText.

They are written to be read by ``help()``: entries are ``name : meaning`` with indented lines after
them, headings are underlined, and a line that begins with ``Cost:``, ``Raises`` or ``Source:``
begins a paragraph. Names such as ``components_`` stand without quotes. numpydoc would take the
meaning of an entry for its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

ENTRY = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*) : (.*)", re.S)
NEXT_ENTRY = re.compile(r"(?<=[.;])  (?=[A-Za-z_]\w*(?:, [A-Za-z_]\w*)* : )")
LABEL = re.compile(r"(Costs?|Raises?|Returns?|Sources?|Memory|Limits):? ")
AS_IT_IS = re.compile(r"(``.+?``|:[a-z:]+:`[^`]+`|`[^`]+`)", re.S)
# what reStructuredText would take for markup: a reference, emphasis, a substitution
NAMED = re.compile(r"(?<![\w.])([\w.]*\w_)(?!\w)")
MARKUP = re.compile(r"([*|\\])")


def inline(text: str) -> str:
    """Text of a docstring with nothing that would be markup by accident."""
    parts = AS_IT_IS.split(" ".join(text.split()))
    for i in range(0, len(parts), 2):
        words = NAMED.split(MARKUP.sub(r"\\\1", parts[i]))
        words[1::2] = [rf"\ ``{word}``\ " for word in words[1::2]]
        parts[i] = "".join(words)
    for i in range(1, len(parts), 2):
        if re.fullmatch(r"`[^`]+`", parts[i]):
            parts[i] = f"`{parts[i]}`"
        parts[i] = rf"\ {parts[i]}\ "
    return "".join(parts)


def entry(text: str) -> Iterator[str]:
    """The lines of a definition list: one item, or several that share a line."""
    for one in NEXT_ENTRY.split(text):
        names, meaning = ENTRY.fullmatch(one.strip()).groups()  # type: ignore[union-attr]
        yield from (f"``{names}``", f"    {inline(meaning) or chr(92)}", "")


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """Lines between empty ones; within them an entry, a label or ``>>>`` begins a block."""
    block: list[str] = []
    for line in [*lines, ""]:
        begins = ENTRY.match(line) or LABEL.match(line) or line.startswith(">>>")
        inside = bool(block) and block[0].startswith(">>>")
        was_entry = bool(block) and ENTRY.match(block[0]) and not line.startswith(" ")
        if block and (not line.strip() or ((begins or was_entry) and not inside)):
            yield block
            block = []
        if line.strip():
            block.append(line)


def as_rst(doc: str) -> list[str]:
    """The lines of a docstring (as inspect.cleandoc leaves it) for Sphinx."""
    found: list[str] = []
    literal = False
    lines = re.sub(r"^(\w[\w ]*)\n-{3,}$", r"\n.. rubric:: \1\n", doc, flags=re.M).split("\n")
    for block in blocks(lines):
        text = "\n".join(block)
        if text.startswith(">>>") or (literal and block[0].startswith(" ")):
            found += [*block, ""]
        elif text.startswith(".. rubric::"):
            found += [text, ""]
        elif ENTRY.match(text):
            found += entry(text)
        else:
            label = LABEL.match(text)
            rest = text[label.end() :] if label else text
            literal = rest.endswith("::")
            rest = inline(rest.removesuffix("::")) + ("::" if literal else "")
            found += [f"**{label[0].strip(': ')}:** {rest}" if label else rest, ""]
            continue
        literal = literal and block[0].startswith(" ")
    return found
