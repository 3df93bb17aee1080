"""Colours are for terminals; a pipe, a file and NO_COLOR get the same text without them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.cli import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, kind: Any, *arguments: str) -> tuple[str, str]:
    """(stdout, stderr) of a command."""
    out, err = kind(), kind()
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", out)
        changed.setattr(sys, "stderr", err)
        main(arguments)
    return out.getvalue(), err.getvalue()


@pytest.mark.slow
def test_heads_and_messages_are_coloured_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.npy")
    np.save(path, np.random.default_rng(0).normal(size=(9, 4)))
    fit = ["fit", path, "-k", "1", "-o", str(tmp_path / "model"), "--overwrite"]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, silent = shown(monkeypatch, io.StringIO, *fit)
    assert "\x1b" not in plain
    assert silent == ""
    out, err = shown(monkeypatch, Terminal, "info", str(tmp_path / "model"))
    head = next(line for line in plain.splitlines() if "cumulative" in line)
    assert f"\x1b[1m{head}\x1b[0m\n" in out
    _, progress = shown(monkeypatch, Terminal, *fit)
    assert progress.endswith("\r\x1b[K")  # nothing stays of the progress
    _, err = shown(monkeypatch, Terminal, "info", "absent\x07")
    assert err == "\r\x1b[K\x1b[31mstreampca: \x1b[0mabsent\\x07: no such file or directory\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(monkeypatch, Terminal, "info", "absent")[1] == (
        "streampca: absent: no such file or directory\n"
    )
