"""A fit of the mean-filled matrix, and EM from there where cells are missing: one candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from streampca.accumulators import Moments
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.models.latent.em import EmRequest, EmResult, EmSizes, em_candidates
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    easier_axis,
    larger,
    pass_spec,
)

T = TypeVar("T")


@dataclass(frozen=True)
class EmAfter:
    """The passes that may follow those of a first fit.

    steps : of EM.  look : what tells whether samples that count have holes, where others weigh 0.
    """

    steps: Candidate[EmResult]
    look: PassSpec | None = None

    @property
    def passes(self) -> tuple[PassSpec, ...]:
        """All of them."""
        return (*(() if self.look is None else (self.look,)), *self.steps.passes)

    def needed(self, features: Array) -> Steps[bool]:
        """Whether samples of positive weight have holes; where some weigh 0, by another read.

        features : numbers of those that have missing cells in any sample.
        """
        if not len(features) or self.look is None:
            return len(features) > 0
        seen = (yield Pass(self.look))["columns"].columns().weight[features]
        return bool(np.any((seen > 0) & (seen < float(self.look.weights.sum()))))

    def run(self, planned: Planned[Any], request: EmRequest) -> Steps[EmResult]:
        """EM, as a part of a planned fit."""
        return self.steps.solve(replace(planned, start=request))


def em_after(matrix: ChunkedMatrix, sizes: EmSizes, weights: Array | None) -> list[EmAfter]:
    """EM along both axes, that of the smaller blocks first.  weights : (n,) of samples, or None."""
    look = None
    if weights is not None and not weights.all():
        look = pass_spec("holes", matrix, easier_axis(matrix), {"columns": Moments()}, stored=True)
        look = replace(look, weights=(weights > 0).astype(np.float64))
    return [EmAfter(one.weighted(weights), look) for one in em_candidates(matrix, sizes)]


def followed(
    first: Candidate[Any], after: EmAfter | None, solve: Callable[..., Steps[T]]
) -> Candidate[T]:
    """A fit, and EM after it.  after : None where there can be no holes.

    solve : takes what is planned, ``first`` and ``after``. Where the answer of ``first`` has a
        doubt, and another way follows, its own has that doubt, and no pass of EM is made.
    """
    made = replace(first, solve=partial(solve, first=first, after=after))
    if first.then is not None:
        made = replace(made, then=followed(first.then, after, solve))
    if after is None:
        return made
    return replace(
        made,
        reason=f"{first.reason}; where there are holes, {after.steps.reason}",
        passes=(*first.passes, *(replace(one, final=True) for one in after.passes)),
        solve_nbytes=larger(dict(first.solve_nbytes), dict(after.steps.solve_nbytes)),
    )


def around_holes(
    first: Sequence[Candidate[Any]], after: Sequence[EmAfter], solve: Callable[..., Steps[T]]
) -> list[Candidate[T]]:
    """Every first fit with every EM after it, in this order.  after : empty where no EM is needed.

    Candidates have the names of the first fits, by which a plan compares them.
    """
    return [followed(one, then, solve) for one in first for then in after or (None,)]
