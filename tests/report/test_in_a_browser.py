"""The report in a real browser: it opens from disk, asks for nothing, and answers the mouse."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tornado")
from browser import DRAWN, PROGRAM, Page, with_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium"),
]


def seen(folder: Path, use: Any) -> None:
    asyncio.run(with_page(folder, use))


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_the_page_answers(
    tmp_path: Path, model: Any, scores: Any, labels: Any, width: int, dark: bool
) -> None:
    path = model.report(tmp_path / "report.html", scores=scores, labels={"side": labels}) and (
        tmp_path / "report.html"
    )

    async def look(page: Page) -> None:
        await page.open(path, width, dark)
        await page.run(DRAWN)
        left, top, wide, high = await page.run(
            "(() => { const b = document.getElementById('canvas').getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        x, y = pixels(scores[:, :2], wide, high)
        lowest = int(np.argmax(y))
        await page.mouse("mouseMoved", left + x[lowest], top + y[lowest])
        said = "document.getElementById('said').textContent"
        found = await page.run(said)
        assert found.startswith(f"sample {lowest + 1} · side: {labels[lowest]} · PC1 "), found
        whole = (left + 58, top + 10), (left + wide - 10, top + high - 38)
        await page.drag(*whole, shift=True)
        assert (await page.run(said)).startswith("90 selected: sample 1, sample 2")
        await page.run("document.querySelector('#legend button').click()")
        await page.drag(*whole, shift=True)
        assert (await page.run(said)).startswith("60 selected")
        await page.run("document.getElementById('canvas').focus()")
        for name in ("+", "ArrowLeft", "0"):
            await page.key(name)
        await page.mouse("mouseWheel", left + 90, top + 90, deltaX=0, deltaY=-200)
        assert await page.run("document.documentElement.scrollWidth") <= width
        assert await page.run(UNNAMED) == 0
        assert page.requests == [path.as_uri()]
        assert page.complaints == []

    seen(tmp_path / "profile", look)


def pixels(points: Any, wide: float, high: float) -> tuple[Any, Any]:
    """Where the script draws points, as it says: 5 % of room, and margins for the axes."""
    low, high_values = points.min(axis=0), points.max(axis=0)
    room = 0.05 * (high_values - low)
    share = (points - low + room) / (high_values - low + 2 * room)
    return 56 + share[:, 0] * (wide - 64), high - 36 - share[:, 1] * (high - 44)


UNNAMED = """[...document.querySelectorAll("button, select, canvas, img, svg, input")].filter(
  (one) => !(one.textContent.trim() || one.getAttribute("aria-label") || one.alt
    || one.labels?.length || one.getAttribute("aria-hidden"))).length"""
