"""Hard-Impute: the matrix of a given rank that is nearest to what is observed."""

from __future__ import annotations

from typing import Any

from streampca.models.completion.completion import Completion


class HardImpute(Completion):
    """Completion by least squares at a given rank: min |W (Z - Xhat)|^2 over rank(Xhat) <= r.

    Parameters
    ----------
    rank : r, from 0, or a list: all are fitted in the same passes, and the one with the least error
        in the held-out cells is kept. 0 is the model of means or biases alone.
    ridge : adds ridge (|U|^2 + |V|^2) for Xhat = U V' (solver "als"); or a list, as ``rank``. At 0
        a row or column of fewer observations than r has its solution of least norm, the limit.
        "auto": 0; with ``validation`` every rank is fitted with 1/128, 1/16, 1/4, 1/2 and 1 times
        the noise level s (sqrt(N / n) + sqrt(N / p)), for N observed cells of deviation s about the
        means of their columns.
    solver : "als" solves rows and columns exactly in turn, which takes the fewest passes. "exact"
        is the classic iteration to the letter: fill the holes with the estimate, take the best
        approximation of rank r, from the p x p or n x n matrix of the filled data. "impute" is the
        same with one step of subspace iteration per pass, for any size; its fixed points are the
        same. "auto" is "als".
    center : True subtracts the mean of every column over its observed cells; False nothing.
        "biases" (solver "als", scale=None) is the model of ratings, x_ij = m + a_i + b_j + u_i'v_j:
        biases of rows and columns are solved for with the factors, drawn to 0 by ridges of their
        own, the noise over their variances in the first look. "fitted" makes means of columns a
        part of the model (solver "als"), so that they are those of the completed matrix. "both"
        centres rows and columns, by turns of one pass each, until all of their observed means are
        0. After "biases" and "both" a new row has a level of its own, from what it observes. "auto"
        is "biases" with ``validation``, where solver and scale allow it, else True. A column
        without observations has the mean of all cells.
    scale : None, or "std": divide by the standard deviation of the observed cells; "both" (with
        center="both"): rows and columns by turns, until all of their mean squares are 1.
    tol : the fit stops when a sweep changes neither the estimate (relative, Frobenius) nor the
        objective by more, or two sweeps the held-out error; then, or at ``max_passes`` with a
        ConvergenceWarning. It does not wait for candidates that cannot have the least held-out
        error any more, at the rate at which theirs falls.
    max_passes : over the data, the first look included, and at most a third of them turns.
    validation : cells held out of the fit, to judge it by: a share of all cells (chosen by a hash
        of their place, so that the same cells are held out whatever the chunks), a boolean (n, p)
        mask, or (rows, columns). With them rank 0 is always a candidate (but with center="fitted"),
        and it is kept unless another one is better by more than the standard error of the
        difference. What is kept has not seen the held-out cells.
    early_stop : stop when the best held-out error has not fallen in the last two sweeps.
    random_state : seed of the held-out cells and of random first directions.
    init : (scores (n, r), loadings (p, r)) of a first estimate, in centred and scaled units, or
        anything fitted: "als" takes the loadings alone.
    bounds : of what ``impute`` and ``predict`` fill in: "observed", the least and the largest cell
        of the whole matrix that the fit has seen; None; or (low, high), such as (1, 5). Sweeps,
        scores and components do not know of them; held-out errors are those of what is filled in.
        May be changed after the fit.
    absent : of sparse data, "missing" (a cell that is not stored was not observed; a stored zero
        is data) or "zero".
    missing_value, memory_limit, scheduler, progress : as :class:`PCA`.
    checkpoint : directory in which an interrupted fit leaves its state after every sweep, and
        within it; the same fit goes on there.
    scratch : directory for the factors of the rows where they do not fit into the memory limit.

    Attributes
    ----------
    components_ (r, p), singular_values_ (r,) of the estimate, mean_, scale_, result_ (a
    :class:`Decomposition` with ``scores``, which save, plots and to_xarray take; ``row_mean`` and
    ``row_scale``, x_ij = row_mean_i + mean_j + row_scale_i scale_j z_ij), best_rank_ and
    best_penalty_ (of the candidate that is kept), trace_ (one :class:`Sweep` after the other),
    n_iter_, turns_ (how far each turn moved the effects of rows and columns), validation_ (rank,
    penalty, held_out and objective of every candidate), bounds_ ((low, high) or None), plan_,
    cost_.

    Cost
    ----
    One pass to look and one per sweep; with t = r (r + 1) / 2 about 4 n p (t + r) flops by "als"
    (4 t per entry of sparse data), 10 n p r by "impute", n p min(n, p) by "exact". Memory: a few
    blocks, (t + r) numbers for each column (or row), and r for each row (or column). Candidates
    share the passes; their flops and memory add up: [2, 4, 8] with ``validation`` are 16 of them,
    about 420 numbers for each column. Biases make r larger by 2, and samples are streamed.

    Source: Mazumder, Hastie and Tibshirani 2010, JMLR 11, section 8; Hastie, Mazumder, Lee and
    Zadeh 2015, JMLR 16, sections 2 and 6.
    """

    def __init__(
        self,
        rank: Any = 1,
        *,
        ridge: Any = "auto",
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
        self.ridge = ridge
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
