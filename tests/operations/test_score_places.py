"""Scores on their way to a path: what others put there meanwhile stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.errors import InvalidInputError
from streampca.operations import scores
from streampca.operations.scores import Made
from streampca.store import ZarrSink
from streampca.store.places import set_aside, unfinished_name
from streampca.store.sinks import copy_rows, mark_written, marked


class Version:
    number, id = 1, "one"


def made(folder: Path) -> Made:
    place = unfinished_name(str(folder / "out"))
    copy_rows(np.ones((3, 1)), place)
    return Made(str(folder / "out"), place, "new", 1)


def thesis(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("thesis")


def test_they_do_not_replace_what_is_not_ours(tmp_path: Path) -> None:
    one: Any = made(tmp_path)
    thesis(tmp_path / "out")
    with pytest.raises(InvalidInputError, match="exists already") as caught:
        one.put(Version())
    assert "were not put there" in caught.value.__notes__[0]
    assert (tmp_path / "out" / "thesis.tex").read_text() == "thesis"


def test_they_replace_ours(tmp_path: Path) -> None:
    ZarrSink(tmp_path / "out", 2, 1).finish()
    one: Any = made(tmp_path)
    one.put(Version())
    assert marked(str(tmp_path / "out")) == "new"


def test_what_is_taken_away_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    ZarrSink(out, 2, 1).finish()
    mark_written(str(out), "old")

    def late(path: str) -> str:
        out.rename(tmp_path / "elsewhere")
        thesis(out)
        return set_aside(path)

    one = made(tmp_path)
    monkeypatch.setattr(scores, "set_aside", late)
    with pytest.raises(InvalidInputError, match="exists already"):
        one.clear_place()
    assert (one.old, (out / "thesis.tex").read_text()) == (None, "thesis")
