"""Soft-Impute: what is observed, approximated with a penalty on the singular values."""

from __future__ import annotations

from typing import Any

from streampca.models.completion.completion import Completion
from streampca.models.parameters import parameter
from streampca.models.registry import estimator


@estimator
class SoftImpute(Completion):
    """Completion with the nuclear norm: min |W (Z - Xhat)|^2 / 2 + lambda |Xhat|_*, rank <= r.

    Attributes: as :class:`HardImpute`.

    Cost
    ----
    One pass to look and one per sweep; with t = r (r + 1) / 2 about 4 n p (t + r) flops by "als"
    (4 t per entry of sparse data), 10 n p r by "impute", n p min(n, p) by "exact". Memory: a few
    blocks, (t + r) numbers for each column (or row), and r for each row (or column).

    Source: Mazumder, Hastie and Tibshirani 2010, JMLR 11, algorithm 1; Hastie, Mazumder, Lee and
    Zadeh 2015, JMLR 16, theorem 1 (both objectives have the same minima).
    """

    rank: Any = parameter(
        default=1,
        kw_only=False,
        counts_components=True,
        meaning="""the most components; where the penalty leaves fewer, it does not matter.""",
    )
    lambda_: Any = parameter(
        default="auto",
        kw_only=False,
        meaning="""every singular value of the filled matrix is lowered by it. Lists of ranks or
            penalties are fitted in the same passes, and the one with the least error in the
            held-out cells is kept. "auto": 0; with ``validation`` 1/128, 1/16, 1/4, 1/2 and
            1 times the noise level, as ``ridge`` of :class:`HardImpute`.""",
    )

    _soft = True
