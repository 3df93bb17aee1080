"""Soft-Impute: what is observed, approximated with a penalty on the singular values."""

from __future__ import annotations

from typing import Any

from streampca.models.completion.completion import Completion


class SoftImpute(Completion):
    """Completion with the nuclear norm: min |W (Z - Xhat)|^2 / 2 + lambda |Xhat|_*, rank <= r.

    Parameters
    ----------
    rank : the most components; where the penalty leaves fewer, it does not matter.
    lambda_ : every singular value of the filled matrix is lowered by it. Lists of ranks or
        penalties are fitted in the same passes, and the one with the least error in the held-out
        cells is kept. "auto": 0; with ``validation`` 1/128, 1/16, 1/4, 1/2 and 1 times the noise
        level, as ``ridge`` of :class:`HardImpute`.
    solver, center, scale, tol, max_passes, validation, early_stop, random_state, init, bounds,
    absent, missing_value, memory_limit, scheduler, progress, checkpoint, scratch : as
        :class:`HardImpute`; "als" puts lambda (|U|^2 + |V|^2) / 2 on the factors, which has the
        same minimum.

    Attributes: as :class:`HardImpute`.

    Cost
    ----
    One pass to look and one per sweep; with t = r (r + 1) / 2 about 4 n p (t + r) flops by "als"
    (4 t per entry of sparse data), 10 n p r by "impute", n p min(n, p) by "exact". Memory: a few
    blocks, (t + r) numbers for each column (or row), and r for each row (or column).

    Source: Mazumder, Hastie and Tibshirani 2010, JMLR 11, algorithm 1; Hastie, Mazumder, Lee and
    Zadeh 2015, JMLR 16, theorem 1 (both objectives have the same minima).
    """

    _soft = True

    def __init__(
        self,
        rank: Any = 1,
        lambda_: Any = "auto",
        *,
        solver: str = "auto",
        center: bool | str = "auto",
        scale: str | None = None,
        tol: float = 1e-5,
        max_passes: int = 100,
        validation: Any = None,
        early_stop: bool = False,
        random_state: Any = 0,
        init: Any = None,
        bounds: Any = "observed",
        absent: str = "missing",
        missing_value: float | None = None,
        memory_limit: int | str | None = None,
        scheduler: Any = None,
        progress: Any = None,
        checkpoint: str | None = None,
        scratch: str | None = None,
    ) -> None:
        self.rank = rank
        self.lambda_ = lambda_
        self.solver = solver
        self.center = center
        self.scale = scale
        self.tol = tol
        self.max_passes = max_passes
        self.validation = validation
        self.early_stop = early_stop
        self.random_state = random_state
        self.init = init
        self.bounds = bounds
        self.absent = absent
        self.missing_value = missing_value
        self.memory_limit = memory_limit
        self.scheduler = scheduler
        self.progress = progress
        self.checkpoint = checkpoint
        self.scratch = scratch
