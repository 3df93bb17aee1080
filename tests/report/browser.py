"""A headless Chromium, driven over its DevTools protocol with the websocket client of Tornado."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-port=0",
)


DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Page:
    """One page; ``events`` are all that the browser said about it."""

    def __init__(self, socket: WebSocketClientConnection) -> None:
        self.socket, self.number, self.events = socket, 0, []  # type: ignore[var-annotated]
        self.session: str | None = None

    async def send(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol, and return its result."""
        self.number += 1
        number, session = self.number, {"sessionId": self.session} if self.session else {}
        await self.socket.write_message(
            json.dumps({"id": number, "method": method, "params": params, **session})
        )
        while True:
            said = await self._next()
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    async def close(self) -> None:
        """End the connection, from both sides."""
        self.socket.close()
        while await self.socket.read_message() is not None:
            pass

    async def _next(self) -> dict[str, Any]:
        text = await asyncio.wait_for(self.socket.read_message(), 60)
        assert text is not None, "the browser is gone"
        said: dict[str, Any] = json.loads(text)
        if "method" in said:
            self.events.append(said)
        return said

    async def open(self, path: Path, width: int, dark: bool = False) -> None:
        """Load a file, at a width in pixels, and wait until it is there."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=2400,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        await self.send("Page.navigate", url=path.as_uri())
        while not any(one["method"] == "Page.loadEventFired" for one in self.events):
            await self._next()

    async def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event, at a place of the window, and what the page draws after it."""
        await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        await self.run(DRAWN)

    async def drag(self, start: tuple[float, float], end: tuple[float, float], shift: bool) -> None:
        """A drag with the left button."""
        held = {"button": "left", "buttons": 1, "modifiers": 8 if shift else 0}
        await self.mouse("mousePressed", *start, clickCount=1, **held)
        await self.mouse("mouseMoved", *end, **held)
        await self.mouse("mouseReleased", *end, clickCount=1, **held)

    async def key(self, name: str) -> None:
        """A key pressed and released."""
        text = {"text": name} if len(name) == 1 else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=name)

    @property
    def requests(self) -> list[str]:
        """URLs that the page asked for, itself included."""
        sent = (one for one in self.events if one["method"] == "Network.requestWillBeSent")
        return [one["params"]["request"]["url"] for one in sent]

    @property
    def complaints(self) -> list[Any]:
        """What it logged, and exceptions."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [one for one in self.events if one["method"] in kinds]


async def with_page(folder: Path, use: Any) -> None:
    """Call ``use(page)`` with a page of a browser whose profile lies in a folder."""
    assert PROGRAM is not None
    browser = subprocess.Popen(
        [PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert browser.stderr is not None
        address = ""
        while "DevTools listening on" not in address:
            address = await asyncio.to_thread(browser.stderr.readline)
            assert address or browser.poll() is None, "the browser did not start"
        socket = await websocket_connect(address.split()[-1], max_message_size=1 << 26)
        page = Page(socket)
        target = await page.send("Target.createTarget", url="about:blank")
        attached = await page.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        try:
            await use(page)
        finally:
            await page.close()
    finally:
        browser.kill()
        browser.wait()
        assert browser.stderr is not None
        browser.stderr.close()
