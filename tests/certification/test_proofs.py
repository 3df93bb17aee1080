"""No bound is violated, whatever the matrix, the components, and the way in which it is read."""

from __future__ import annotations

import pytest
from proofs import violations


@pytest.mark.parametrize("seeds", [range(20)])
def test_no_bound_is_violated(seeds):
    assert [one for seed in seeds for one in violations(seed)] == []


@pytest.mark.soak
def test_no_bound_is_violated_in_500_cases():
    assert [one for seed in range(20, 520) for one in violations(seed)] == []
