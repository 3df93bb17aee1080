"""What tests of sources share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def freed_memory_stays() -> Iterator[None]:
    """Strips of Dask return what they free to the system. malloc then looks through all that a long
    session has left, up to 15 ms for every strip. No test of this process sees what was returned:
    memory is measured in processes of their own (tests/test_memory_layouts.py)."""
    from streampca.sources.dask import frame, strips

    with pytest.MonkeyPatch.context() as patch:
        for module in (frame, strips):
            patch.setattr(module, "give_back", lambda: None)
        yield
