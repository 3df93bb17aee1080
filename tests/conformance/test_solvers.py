"""Each of our solvers and sources on matrices with known answers: right, or a limit is named."""

from __future__ import annotations

import pytest

from tests.conformance.__main__ import tried
from tests.conformance.fits import OURS
from tests.conformance.matrices import CASES

LONG = ("gram", "scatter", "Zarr", "Dask", "PCA auto, sparse", "randomized, sparse")


@pytest.mark.parametrize(
    "fit",
    [
        pytest.param(name, marks=getattr(pytest.mark, "soak" if long else "slow"))
        for name in OURS
        if (long := any(one in name for one in LONG)) or not name.endswith("auto")
    ],
)
def test_no_answer_is_wrong(fit: str) -> None:
    verdicts = {name: tried(OURS[fit], name)[0] for name in CASES}
    assert {name: one for name, one in verdicts.items() if one.word == "wrong"} == {}
    refused = [one.why for one in verdicts.values() if one.word == "refuses"]
    ours = ("NonFiniteError", "InvalidTypeError", "InvalidInputError")
    assert all(why.startswith((*ours, "ValueError: scipy.sparse does not")) for why in refused)
