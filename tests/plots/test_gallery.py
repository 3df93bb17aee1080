"""Every picture of the gallery is drawn without a warning, and saved: as SVG, and as PNG or PDF."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gallery import pictures

from streampca import plots

GALLERY = dict(pictures())


@pytest.mark.slow
@pytest.mark.parametrize("name", GALLERY)
def test_a_picture_is_drawn_and_saved(name: str, tmp_path: Path) -> None:
    draw: Callable[[], Any] = GALLERY[name]
    figure = draw().figure
    for kind in ("svg", ("png", "pdf")[[*GALLERY].index(name) % 2]):
        figure.savefig(tmp_path / f"picture.{kind}", bbox_inches="tight")
        assert (tmp_path / f"picture.{kind}").stat().st_size > 4000
    assert ElementTree.parse(tmp_path / "picture.svg").getroot().tag.endswith("svg")


def test_the_gallery_has_every_kind() -> None:
    text = (Path(__file__).parent / "gallery.py").read_text()
    elsewhere = {"loadings_table", "embedding", "embedding_page"}  # tests/embedding draws these
    kinds = set(plots.__all__) - elsewhere
    assert {kind for kind in kinds if f"plots.{kind}(" not in text} == set()


def test_type_checkers_read_a_call_of_every_kind() -> None:
    text = (Path(__file__).parents[1] / "typed_use.py").read_text()
    assert {kind for kind in plots.__all__ if f"plots.{kind}(" not in text} == set()
