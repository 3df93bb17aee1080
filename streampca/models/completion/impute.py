"""Hard- and Soft-Impute: the nearest matrix of a given rank, or of a small nuclear norm."""

from __future__ import annotations

from typing import Any

from streampca.models.completion.completion import Completion
from streampca.models.contract.parameters import parameter
from streampca.models.contract.registry import estimator


@estimator
class HardImpute(Completion):
    """Completion by least squares at a given rank: min |W (Z - Xhat)|^2 over rank(Xhat) <= r.

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
    share the passes; their flops and memory add up: [2, 4, 8] with ``validation`` are 15 of them,
    about 370 numbers for each column (by default of ratings 18, and 870 numbers). Biases make r
    larger by 2, and samples are streamed.

    Source: Mazumder, Hastie and Tibshirani 2010, JMLR 11, section 8; Hastie, Mazumder, Lee and
    Zadeh 2015, JMLR 16, sections 2 and 6.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import HardImpute
    >>> X = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    >>> X[3, 0] = np.nan
    >>> HardImpute(1).fit(X).impute(X)[3].round(3)
    array([ 4.,  8., 12.])
    """

    rank: Any = parameter(
        default="auto",
        kw_only=False,
        counts_components=True,
        meaning="""r, from 0, or a list: all are fitted in the same passes, and the one with the
            least error in the held-out cells is kept. 0 is the model of means or biases
            alone. "auto": 1; of ``open_ratings`` 2, 4, 8 and 16, to a ``tol`` of 1e-3. Several
            ranks of ratings are judged by ``validation``, biases alone among them. If it is None,
            0.05 of the cells are held out, and given back: in the end what is kept is fitted to
            all cells.""",
    )
    alpha: Any = parameter(
        default="auto",
        meaning="""ridge penalty: adds alpha (|U|^2 + |V|^2) for Xhat = U V' (solver "als"); or a
            list, as ``rank``. At 0 a row or column of fewer observations than r has its solution of
            least norm, the limit. "auto": 0; with ``validation`` every rank is fitted with
            1/128, 1/16, 1/4, 1/2 and 1 times the noise level s (sqrt(N / n) + sqrt(N / p)),
            for N observed cells of deviation s about the means of their columns.""",
    )


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

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import SoftImpute
    >>> X = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    >>> X[3, 0] = np.nan
    >>> SoftImpute(2, lambda_=0.1).fit(X).impute(X)[3].round(2)
    array([ 2.93,  8.  , 12.  ])
    """

    rank: Any = parameter(
        default="auto",
        kw_only=False,
        counts_components=True,
        meaning="""the most components; where the penalty leaves fewer, it does not matter.
            "auto": 1; of ``open_ratings`` 20, the penalty judged by ``validation``, biases alone
            among them, to a ``tol`` of 1e-3. If it is None, 0.05 of the cells are held out, and
            given back: in the end what is kept is fitted to all cells.""",
    )
    lambda_: Any = parameter(
        default="auto",
        kw_only=False,
        meaning="""every singular value of the filled matrix is lowered by it. Lists of ranks or
            penalties are fitted in the same passes, and the one with the least error in the
            held-out cells is kept. "auto": 0; with ``validation`` 1/128, 1/16, 1/4, 1/2 and
            1 times the noise level, as ``alpha`` of :class:`HardImpute`.""",
    )

    _soft = True
