"""Two hundred fits give what they gave: see :mod:`tests.golden`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests import golden


def differences(old: dict[str, Any], new: dict[str, Any], same_machine: bool) -> list[str]:
    """In words, what of one fit is not as it was."""
    rtol = 1e-9 if same_machine else 1e-3
    wrong = [
        f"{what}: {old.get(what)} -> {new.get(what)}"
        for what in ("error", "plan", "passes", "reads", *(["bits"] if same_machine else []))
        if old.get(what) != new.get(what)
    ]
    was, now = (np.array(one.get("values", ())) for one in (old, new))
    if was.shape != now.shape or not np.allclose(
        now, was, rtol=rtol, atol=rtol * abs(was).max(initial=0)
    ):
        wrong.append(f"values: {was} -> {now}")
    return wrong


@pytest.mark.slow
def test_every_fit_gives_what_it_gave() -> None:
    old, new = json.loads(golden.TABLE.read_text()), golden.table()
    same_machine = old["environment"] == new["environment"]
    assert set(new["fits"]) == set(old["fits"])
    found = {
        name: wrong
        for name, one in old["fits"].items()
        if (wrong := differences(one, new["fits"][name], same_machine))
    }
    assert not found, "\n".join(f"{name}: {'; '.join(wrong)}" for name, wrong in found.items())


@pytest.mark.slow
def test_a_changed_bit_is_reported() -> None:
    one = {"bits": "a", "plan": "b", "passes": 1, "reads": [1, 2], "values": [1.0, 2.0]}
    assert differences(one, dict(one), same_machine=True) == []
    for what, other in {"bits": "c", "plan": "c", "passes": 2, "values": [1.0, 2.1]}.items():
        assert len(differences(one, one | {what: other}, same_machine=True)) == 1
    assert differences(one, one | {"bits": "c"}, same_machine=False) == []
