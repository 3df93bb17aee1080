"""No bound is violated, whatever the matrix, the components, and the way in which it is read."""

from __future__ import annotations

import pytest
from proofs import violations


def test_no_bound_is_violated():
    assert [one for seed in range(15) for one in violations(seed)] == []
    assert [one for seed in range(8) for one in violations(seed, calls=True)] == []


@pytest.mark.soak
def test_no_bound_is_violated_in_500_cases():
    assert [one for seed in range(15, 515) for one in violations(seed)] == []
    assert [one for seed in range(8, 258) for one in violations(seed, calls=True)] == []
