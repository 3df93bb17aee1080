"""What goes to a terminal: colours for a person, and no character that it would obey.

Files, pipes and ``NO_COLOR`` get plain text.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from streampca.errors import hide_secrets, printable, printable_name

PACKAGE = logging.getLogger("streampca")
LOGGER = logging.getLogger(__name__)
BOLD, RED, YELLOW = "1", "31", "33"
LOOKS = (  # what is shown how, in a text whose own control characters are escaped
    (re.compile(r"^ *(?:component|rank) +(?:variance|penalty)\b.*$", re.MULTILINE), BOLD),
    (re.compile(r"(?<=  )not determined|\(more than planned\)"), YELLOW),
)


def shown(path: object) -> str:
    """A path or URL on one line, without credentials and control characters."""
    return printable_name(hide_secrets(str(path)))


def takes_colours(stream: Any) -> bool:
    """Whether a stream is a terminal on which colours are wanted (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and bool(getattr(stream, "isatty", bool)())


def painted(text: str) -> str:
    """A text with the heads of tables bold, and what is uncertain in yellow."""
    for pattern, look in LOOKS:
        text = pattern.sub(lambda found, look=look: in_look(found[0], look), text)  # type: ignore[misc]
    return text


def in_look(text: str, look: str) -> str:
    """A text between the codes that turn a look on and off."""
    return f"\x1b[{look}m{text}\x1b[0m"


def announced(head: str, text: str, look: str, stream: Any) -> str:
    """A message behind its head, which a terminal shows in colour, over the progress line."""
    if not look or not takes_colours(stream):
        return f"{head}{text}"
    return f"\r\x1b[K{in_look(head, look)}{text}"


def log_on_stderr() -> bool:
    """Whether the log goes to stderr, where nothing else is printed then."""
    return any(getattr(one, "stream", None) is sys.stderr for one in PACKAGE.handlers)


def announce(
    text: str,
    level: int = logging.INFO,
    *,
    head: str = "streampca: ",
    look: str = "",
    notes: Sequence[str] = (),
    fault: BaseException | None = None,
    **fields: Any,
) -> None:
    """Log a text, and print it on stderr with its notes, unless that is where the log goes.

    fault : an error whose traceback the log shows.
    """
    text, *notes = (printable_name(hide_secrets(one)) for one in (text, *notes))  # a line each
    LOGGER.log(level, text, exc_info=fault, extra={**fields, "notes": notes} if notes else fields)
    if not log_on_stderr():
        print(announced(head, text, look, sys.stderr), file=sys.stderr)
        for note in notes:
            print(f"  {note}", file=sys.stderr)


class Printable:
    """A text stream that escapes control characters; a terminal gets colours."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._coloured = stream, takes_colours(stream)

    def write(self, text: str) -> int:
        """Write a text. Returns its length."""
        shown = printable(text)
        self._stream.write(painted(shown) if self._coloured else shown)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write them one by one."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Standard output as a :class:`Printable`."""
    with contextlib.redirect_stdout(Printable(sys.stdout)):
        yield
