"""What tests of several models share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

Resumed = Callable[[str, Callable[[], Any]], Any]


class Interrupted(Exception):
    """Stands for a power failure."""


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> Resumed:
    """``resumed("sweep 2", fit)``: what the second call of ``fit`` returns.

    The first one is interrupted before that pass, and the second one begins with it.
    """

    def interrupted(where: str, fit: Callable[[], Any]) -> Any:
        passes = sys.modules["streampca.passes.execute"]
        calls: list[str] = []
        run, failing = passes.run, True

        def watched(plan: Any, *args: Any, **more: Any) -> Any:
            calls.append(plan.name)
            if failing and plan.name == where:
                raise Interrupted
            return run(plan, *args, **more)

        monkeypatch.setattr(passes, "run", watched)
        with pytest.raises(Interrupted):
            fit()
        before, failing = len(calls), False
        found = fit()
        assert calls[before] == where
        return found

    return interrupted
