"""Progress of a fit: pass, blocks, MB/s and time left, in a terminal or in Jupyter."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Advance:
    """Where a fit stands, handed to the progress callback after each block."""

    pass_name: str
    pass_number: int
    n_passes: int
    blocks_done: int
    n_blocks: int
    nbytes: int  # decoded, in this pass
    seconds: float  # since this pass began
    blocks_resumed: int = 0  # of those done, taken from a checkpoint

    def __str__(self) -> str:
        rate = self.nbytes / max(self.seconds, 1e-9)
        read = max(self.blocks_done - self.blocks_resumed, 1)
        left = self.seconds * (self.n_blocks - self.blocks_done) / read
        return (
            f"pass {self.pass_number}/{self.n_passes} {self.pass_name}  "
            f"block {self.blocks_done}/{self.n_blocks}  {rate / 1e6:.0f} MB/s  {left:.0f} s left"
        )


class Progress(Protocol):
    """Anything that can be called with an :class:`Advance`."""

    def __call__(self, advance: Advance) -> None: ...


class TerminalProgress:
    """One line on stderr, rewritten at most ten times a second; gone when its pass is done."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream or sys.stderr
        self._last = 0.0

    def __call__(self, advance: Advance) -> None:
        now, done = time.monotonic(), advance.blocks_done == advance.n_blocks
        if not done and now - self._last < 0.1:
            return
        self._last = now
        self.stream.write("\r\x1b[K" + ("" if done else str(advance)))
        self.stream.flush()


class NotebookProgress:
    """A bar in Jupyter, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last = 0.0

    def __call__(self, advance: Advance) -> None:
        from IPython.display import HTML, display

        now, done = time.monotonic(), advance.blocks_done == advance.n_blocks
        if not done and now - self._last < 0.2:
            return
        if self._handle is None:  # no bar for passes that end at once
            if advance.seconds < 0.5:
                return
            self._handle = display("", display_id=True)
        self._last = now
        bar = f'<progress value="{advance.blocks_done}" max="{advance.n_blocks}"></progress>'
        self._handle.update(HTML(f"{bar} {advance}"))


def resolve(progress: bool | Progress | None) -> Progress | None:
    """The callback for ``progress=``: None follows the surroundings, True and False decide."""
    if callable(progress):
        return progress
    if progress is False:
        return None
    shell = type(sys.modules["IPython"].get_ipython()).__name__ if "IPython" in sys.modules else ""
    if shell == "ZMQInteractiveShell":
        return NotebookProgress()
    if progress or (progress is None and sys.stderr.isatty()):
        return TerminalProgress()
    return None
