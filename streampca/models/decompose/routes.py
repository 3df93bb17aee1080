"""The ways to a PCA, a row each, and how one of them is chosen.

A row says which values of ``solver`` take it and what it cannot do. To add a way: a file with
its candidates (:class:`streampca.passes.Candidate`), which carry their solver, and a row here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ALLELE_SCALES, ChunkedMatrix
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted
from streampca.models.decompose.eigenproblem import with_kept_sums
from streampca.models.decompose.gram import gram_candidates
from streampca.models.decompose.gram_outputs import GramOutputs
from streampca.models.decompose.krylov import krylov_candidates
from streampca.models.decompose.panels import panel_candidates
from streampca.models.decompose.scatter import scatter_candidates, tsqr_candidates
from streampca.models.decompose.sketch import sketch_candidates
from streampca.passes import Candidate, Pass, PassCost, PassPlan, PassResult, Rates, in_memory
from streampca.sources.genotypes.allele_counts import refuse_other_ploidy
from streampca.store import MemorySink

T = TypeVar("T")


class Need(Enum):
    """What a request may need that not every way can give, and what to say then."""

    DESIGN_IN_HOLES = (
        "missing='mean' with remove= and solver={solver!r}: a hole holds what the design "
        "says there, which streamed samples cannot know in one pass. Use solver='gram', "
        "which streams features"
    )
    MATRIX_OF_SAMPLES = (
        "relationship=, loadings=, kinship=, shrinkage= and missing='pairwise' need the matrix of "
        "the samples, which solver={solver!r} does not form; use solver='gram'"
    )
    NUMBER_OF_COMPONENTS = (
        "solver={solver!r} needs a number of components from 1, not n_components={count!r}: "
        "the whole spectrum is not computed"
    )
    OTHER_SAMPLES = (
        "solver={solver!r} does not give scores of other samples in the same fit "
        "(fit_samples); use 'gram'"
    )


@dataclass(frozen=True)
class Way:
    """A row of the table.

    candidates : for a matrix and a request, the most generous first.
    solvers : the values of ``solver`` that take it; the plan chooses among the ways of one.
    lacks : the needs that it cannot meet.  exact : it does not iterate.
    writes : the candidates take a third argument, :class:`GramOutputs`.
    """

    candidates: Callable[..., list[Candidate[Fitted]]]
    solvers: tuple[str, ...]
    lacks: tuple[Need, ...] = ()
    exact: bool = True
    writes: bool = False

    def of(
        self, matrix: ChunkedMatrix, request: Request, outputs: GramOutputs
    ) -> list[Candidate[Fitted]]:
        """The candidates."""
        return self.candidates(matrix, request, *([outputs] if self.writes else []))

    def asked(
        self, matrix: ChunkedMatrix, request: Request, outputs: GramOutputs
    ) -> list[Candidate[Fitted]]:
        """The candidates, with the weights of the request, and sums that a warm start keeps."""
        kept, side = with_kept_sums if request.warm_start else lambda one: one, request.side
        return [
            kept(one).weighted(side.sample_weight, side.weights)
            for one in self.of(matrix, request, outputs)
        ]


ONE_LOOK = (Need.DESIGN_IN_HOLES, Need.MATRIX_OF_SAMPLES)
ITERATION = (Need.MATRIX_OF_SAMPLES, Need.NUMBER_OF_COMPONENTS, Need.OTHER_SAMPLES)
SCATTER = Way(scatter_candidates, ("auto", "scatter"), ONE_LOOK)
GRAM = Way(gram_candidates, ("auto", "gram"), writes=True)
PANELS = Way(panel_candidates, ("auto", "gram"), ONE_LOOK)  # of a Gram matrix
WAYS = (
    SCATTER,
    Way(tsqr_candidates, ("tsqr",), ONE_LOOK),
    GRAM,
    PANELS,
    Way(krylov_candidates, ("auto", "randomized"), ITERATION, exact=False),
    Way(sketch_candidates, ("sketch",), ONE_LOOK),
)
SOLVERS = tuple(dict.fromkeys(one for way in WAYS for one in way.solvers))
ALIASES = {"covariance_eigh": "scatter", "full": "tsqr", "arpack": "auto"}  # scikit-learn's
# Up to (seconds, times the iterative solver), one pair of them, an exact solver is taken at once,
AFFORDABLE = ((0.2, np.inf), (10.0, 4.0), (np.inf, 1.25))
PATIENCE = 120.0  # seconds that a user waits
GO_OVER = ((PATIENCE, np.inf), (np.inf, 4.0))  # or gone over to where an iteration cannot certify
WAGER = 0.3  # of its time, which an iteration may take in vain
OBLONG = 8  # ratio of the axes from which only the longer one is worth streaming
MOST_IN_MEMORY, MOST_ON_DISK = 400, 24  # passes of an iteration that nobody has bounded


def pca_candidates(
    matrix: ChunkedMatrix, request: Request, outputs: GramOutputs | None = None
) -> list[Candidate[Fitted]]:
    """The ways to a requested PCA, the preferred first, with the weights of the request.

    outputs : what else the fit writes, and whom it scores.
    Raises InvalidInputError for an unsuitable solver.
    """
    if request.scale in ALLELE_SCALES:
        refuse_other_ploidy(matrix, request.standardize.ploidy)
    solver = ALIASES.get(request.solver, request.solver)
    if solver not in SOLVERS:
        raise InvalidInputError(f"solver={solver!r}; expected one of {SOLVERS}")
    if solver == "randomized" and request.n_components is None:
        solver = "auto"  # all components: nothing is left to iterate for
    ways = [way for way in WAYS if solver in way.solvers]
    outputs = outputs or GramOutputs()
    for need in _needs(request, outputs):
        ways = [way for way in ways if need not in way.lacks]
        if not ways:
            raise InvalidInputError(need.value.format(solver=solver, count=request.n_components))
    natural = _natural(matrix)
    if solver == "auto" and natural in ways:
        unnatural = [way for way in (SCATTER, GRAM, PANELS) if way is not natural]
        ways = [way for way in ways if way not in unnatural or (way, natural) == (PANELS, GRAM)]
    exact = [c for way in ways if way.exact for c in way.asked(matrix, request, outputs)]
    iterative = [c for way in ways if not way.exact for c in way.asked(matrix, request, outputs)]
    return _ordered(matrix, request, exact, iterative)


def quick_candidates(matrix: ChunkedMatrix, request: Request) -> list[Candidate[Fitted]]:
    """The exact way along the longer axis of an oblong matrix, where that is taken at once: to
    price all others takes longer than a small fit. Empty where another might be preferred."""
    way = _natural(matrix)
    if way is None or request.solver != "auto" or request.iterate:
        return []
    if any(need in way.lacks for need in _needs(request, GramOutputs())):
        return []
    if request.scale in ALLELE_SCALES:
        refuse_other_ploidy(matrix, request.standardize.ploidy)
    candidates = way.asked(matrix, request, GramOutputs())
    timed = Rates.of(request.rates).timed(matrix, candidates)
    return [one for one in timed if timed[0].seconds <= AFFORDABLE[0][0]]


def _natural(matrix: ChunkedMatrix) -> Way | None:
    """The exact way along the longer axis of an oblong matrix; None of a matrix almost square."""
    n, p = matrix.shape
    if max(n, p) < OBLONG * min(n, p):
        return None
    return SCATTER if n > p else GRAM


def _needs(request: Request, outputs: GramOutputs) -> Iterator[Need]:
    if request.missing == "mean" and request.side.basis is not None:
        yield Need.DESIGN_IN_HOLES
    cohort = outputs.cohort
    residuals = cohort is not None and cohort.residuals
    if outputs != GramOutputs(cohort=cohort) or residuals:
        yield Need.MATRIX_OF_SAMPLES
    if not request.count:
        yield Need.NUMBER_OF_COMPONENTS
    if cohort is not None:
        yield Need.OTHER_SAMPLES


def _ordered(
    matrix: ChunkedMatrix,
    request: Request,
    exact: list[Candidate[Fitted]],
    iterative: list[Candidate[Fitted]],
) -> list[Candidate[Fitted]]:
    """The rule of ``auto``: exact solvers that are affordable, iterative ones, other exact ones.

    Each by predicted time; of equal ones the more generous. An iteration that may go over to an
    exact solver comes before one that may not.
    """
    rates = Rates.of(request.rates)
    exact, iterative = (rates.timed(matrix, some) for some in (exact, iterative))
    if request.exact_first:
        return exact + iterative
    most = most_passes(matrix) if request.unbounded else 0
    return ordered(exact, iterative, request.iterate, request.may_go_over, most)


def most_passes(matrix: ChunkedMatrix) -> int:
    """Passes that an iteration may make over a matrix of which a read is cheap; 0 where nothing is
    known of what a read costs."""
    places = matrix.locations()
    if in_memory(matrix):
        return MOST_IN_MEMORY
    return 0 if not places or any(one.remote for one in places) else MOST_ON_DISK


def _with_passes_worth_making(one: Candidate[T], most: int) -> Candidate[T]:
    """A candidate whose repeated passes go on while they cost less than WAGER of what it goes over
    to, or, where that is nothing, a time that a user waits."""
    patience = PATIENCE if one.then is None else WAGER * one.then.seconds
    worth = min(one.passes_within(patience), most)
    passes = (
        replace(spec, times=max(spec.times, worth)) if spec.times > 1 else spec
        for spec in one.passes
    )
    return replace(one, passes=tuple(passes))


def ordered(
    exact: list[Candidate[T]],
    iterative: list[Candidate[T]],
    iterate: bool = False,
    may_go_over: bool = True,
    most: int = 0,
) -> list[Candidate[T]]:
    """Exact ones that are affordable, iterative ones, each followed by an exact one that it may go
    over to, and the other exact ones; both lists are in the order of their predicted times.

    iterate : none comes before the iterative ones.  most : passes that these may make, if more
        than they declare, while they are worth their time.
    """
    if not exact or not iterative:
        return exact + iterative
    quickest = iterative[0].seconds
    first = [one for one in exact if within(AFFORDABLE, one.seconds, quickest)]
    last_resorts = [one for one in exact if within(GO_OVER, one.seconds, quickest)]
    first, last_resorts = first * (not iterate), last_resorts * may_go_over
    iterative = [
        _with_passes_worth_making(replace(one, then=then), most)
        for then in (*last_resorts, None)
        for one in iterative
    ]
    return first + iterative + [one for one in exact if one not in first]


def within(rule: Iterable[tuple[float, float]], seconds: float, quickest: float) -> bool:
    """Whether the predicted seconds of an exact solver satisfy one pair of the rule.

    quickest : predicted seconds of the iterative solver.
    """
    return any(seconds <= most and seconds <= times * quickest for most, times in rule)


class WarmStart:
    """Folded first passes, and the searched space of an iteration, kept in memory.

    A first pass depends on the matrix and not on how many components are asked: fitting again
    with another ``n_components`` then reads nothing (but for loadings that are computed from the
    new vectors). Only for the matrix, its content as far as its stamp tells, weights and request
    of the fit that left it.
    """

    def __init__(self) -> None:
        self._of = ""
        self._passes: dict[str, tuple[PassResult, dict[str, Any]]] = {}
        self.iteration: Any = None  # the searched space of the iterative solver

    def turn_to(self, matrix: ChunkedMatrix, request: Request) -> None:
        """Discard what another matrix or another request left."""
        taken = (request.solver, request.standardize, request.missing, matrix.missing_value)
        digest = hashlib.sha256(repr(taken).encode())
        digest.update(matrix.content_stamp().encode())
        for name, array in vars(request.side).items():
            if isinstance(array, np.ndarray):
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        if digest.hexdigest() != self._of:
            self._of = digest.hexdigest()
            self._passes.clear()
            self.iteration = None

    def recall(self, plan: PassPlan, wanted: Pass, run: Callable[[], PassResult]) -> PassResult:
        """The result of a first pass: the kept one, or that of ``run``, which is then kept."""
        accumulators, sinks = wanted.accumulators(), wanted.sinks
        settings = [(n, repr([getattr(a, s) for s in a.settings])) for n, a in accumulators.items()]
        key = json.dumps([plan.to_dict(), settings], sort_keys=True)
        held = {n: sink.values for n, sink in sinks.items() if isinstance(sink, MemorySink)}
        if wanted.operands or len(held) < len(sinks):
            return run()
        if key not in self._passes:
            self._passes.clear()
            done = run()
            copies = {name: values.copy() for name, values in held.items()}
            self._passes[key] = (_copied(done), copies)
            return done
        kept, copies = self._passes[key]
        for name, values in copies.items():
            held[name][...] = values
        return _copied(kept)


def _copied(result: PassResult) -> PassResult:
    """A result that the caller may change; it cost nothing."""
    copies = {name: one.copied() for name, one in result.accumulators.items()}
    return PassResult(copies, PassCost(result.cost.name))
