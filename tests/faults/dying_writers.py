"""Writers that die at some write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import zarr
from zarr.core.sync import sync


class Died(Exception):
    """The writer."""


@contextlib.contextmanager
def dying(after: int) -> Iterator[None]:
    """All writes fail after so many."""
    put, done = zarr.storage.LocalStore.set, [0]

    async def one(self: Any, key: str, value: Any) -> None:
        done[0] += 1
        if done[0] > after:
            raise Died
        await put(self, key, value)

    async def quiet() -> None:
        """Zarr leaves the other writes of one that failed under way."""
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr.storage.LocalStore, "set", one)
        try:
            yield
        finally:
            sync(quiet())
