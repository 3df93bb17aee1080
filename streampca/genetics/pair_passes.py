"""One pass over the variants that sums something for all pairs of samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from streampca.errors import InvalidInputError
from streampca.genetics.counts import well_called
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.id_lists import Names
from streampca.matrix import ChunkedMatrix, Standardize
from streampca.models.results.result import provenance
from streampca.passes import PassCost, Plan, Planned, Running, execute
from streampca.sources import as_matrix
from streampca.sources.genotypes.allele_counts import (
    DIPLOID,
    PLOIDY,
    copies_are_unstated,
    with_missing_calls,
)

AUTOSOMES = VariantFilter()


@dataclass(frozen=True, kw_only=True)
class PairSettings:
    """The samples and variants that count, as :class:`GenotypePCA` takes them, and the scaling."""

    maf: float = 0.0
    max_missing: float = 1.0
    max_sample_missing: float = 1.0
    variants: VariantFilter = AUTOSOMES
    keep: Names | None = None
    exclude: Names | None = None
    scale: str | None = "hwe"

    def stored(self) -> dict[str, Any]:
        """In a form that is kept with a result."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return settings | {name: _listed(settings[name]) for name in ("keep", "exclude")}

    def wanted(self, matrix: ChunkedMatrix, method: str) -> Standardize:
        """Which variants count, and how they are scaled.  method : what needs them."""
        return Standardize(
            scale=self.scale,
            maf=self.maf,
            max_missing=self.max_missing,
            code_assumed=copies_are_unstated(matrix),
            counts=True,
            method=method,
        )


@dataclass(frozen=True)
class PairSums:
    """The answer of a pass over all pairs, and what describes it.

    n_read : variants that were read.
    described : samples, settings, provenance and plan, as a result takes them.
    """

    answer: Any
    n_read: int
    described: dict[str, Any] = field(default_factory=dict)

    @property
    def sums(self) -> dict[str, Any]:
        """The sums, by name, where they are the answer."""
        sums: dict[str, Any] = self.answer.accumulators
        return sums


PlanPairs = Callable[[ChunkedMatrix, Standardize, "int | str | None"], Planned[Any]]


def sum_over_pairs(
    X: Any,
    settings: PairSettings,
    plan: PlanPairs,
    method: str,
    *,
    dim: Any = None,
    missing_value: float | None = None,
    hard_calls: bool = False,
    running: Running,
) -> PairSums:
    """The sums of one pass over the chosen variants, and one before it for ``max_sample_missing``.

    plan : of that pass; it is made before anything is read, and again where samples were left out.
    method : what needs them, for messages.
    hard_calls : of dosages, the calls that belong to them are summed.
    Raises InvalidInputError for fewer than two samples, for calls of other ploidies, and where no
    variant is left; MemoryLimitError with the smallest limit that would do.
    """
    limit = running.memory_limit
    matrix = with_missing_calls(as_matrix(X, dim=dim, missing_value=missing_value))
    matrix = filter_genotypes(matrix, settings.variants, settings.keep, settings.exclude)
    refuse_pairs(matrix, method)
    calls = matrix.hard_calls() if hard_calls else matrix
    wanted, first = settings.wanted(calls, method), {"maf": 0.0, "max_missing": 1.0}
    if calls is not matrix:  # dosages judge the variants, before their calls are counted
        first = {"maf": settings.maf, "max_missing": settings.max_missing}
        wanted = replace(wanted, maf=0.0, max_missing=1.0)
    planned = plan(calls, wanted, limit)
    before: list[tuple[Plan, PassCost]] = []
    listed = matrix.shape
    matrix = well_called(
        matrix,
        maf=first["maf"],
        max_missing=first["max_missing"],
        max_sample_missing=settings.max_sample_missing,
        made=before,
        memory_limit=limit,
        scheduler=running.scheduler,
        progress=running.progress,
    )
    if matrix.shape != listed:
        refuse_pairs(matrix, method)
        planned = plan(matrix.hard_calls() if hard_calls else matrix, wanted, limit)
    done = execute(planned, running)
    costs = [*(cost for _, cost in before), *done.costs]
    described = {
        "samples": matrix.labels.samples,
        "settings": settings.stored(),
        "provenance": provenance(costs, matrix.fingerprint(), done.memory),
        "plan": done.plan.after(*(one for one, _ in before)).to_dict(),
    }
    return PairSums(done.answer, matrix.shape[1], described)


def none_left(settings: PairSettings | Standardize, n_variants: int) -> InvalidInputError:
    """The error where the filters leave no variant."""
    return InvalidInputError(
        f"maf={settings.maf:g} and max_missing={settings.max_missing:g} leave none of "
        f"{n_variants} variants"
    )


def _listed(names: Names | None) -> list[str] | str | None:
    """A path, or names in a form that is kept with a result."""
    if names is None or isinstance(names, (str, os.PathLike)):
        return None if names is None else os.fspath(names)
    return [str(one) for one in names]


def refuse_pairs(matrix: ChunkedMatrix, method: str) -> None:
    """Raise InvalidInputError where there are no pairs, or the calls are not diploid."""
    n = matrix.shape[0]
    if n < 2:
        raise InvalidInputError(
            f"{method} needs at least 2 samples; there is {n}. Samples are rows: X.T?"
        )
    stated = matrix.labels.attrs.get(PLOIDY, DIPLOID)
    if stated != DIPLOID:
        raise InvalidInputError(
            f"{method} is defined for diploid calls; these have up to {stated} copies"
        )
