"""Exact principal components of genotypes: standardised counts, missing calls at the mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from streampca.accumulators import FeatureProjection, RowMissing
from streampca.errors import InvalidInputError, OccupiedError
from streampca.genetics.counts import (
    plan_counting_samples,
    preceded,
    warn_of_children,
    warn_of_local_components,
    well_called,
)
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.id_lists import Names, sample_mask
from streampca.kernels import Array
from streampca.matrix import ALLELE_SCALES, Block, ChunkedMatrix, Labels, select
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Cohort, Request, iteration_limits, seed_of
from streampca.models.decompose.assemble import Fitted, assemble
from streampca.models.decompose.routes import choose_pca
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.results.linear_result import COMPONENTS
from streampca.models.results.projection import Projection
from streampca.models.results.row_maps import RowOptions
from streampca.models.results.views import eigenvalues, eigenvectors, frequencies
from streampca.models.rows.new_rows import LazyRows
from streampca.passes import PassCost, Plan, Planned, easier_axis, execute
from streampca.solvers import TracyWidom
from streampca.sources import as_matrix
from streampca.sources.genotypes.allele_counts import (
    MISSING_CALL,
    coding_is_assumed,
    copies_are_unstated,
    with_missing_calls,
)
from streampca.store import labelled_rows, occupied


@dataclass(frozen=True)
class ScoresAndHoles:
    """(rows, k + 1) scores and number of missing calls of a block of samples: a map."""

    projection: Projection

    def __call__(self, block: Block) -> Array:
        return np.hstack([self.projection(block), block.row_missing[:, None]], dtype=np.float64)

    @property
    def width(self) -> int:
        """k + 1."""
        return len(self.projection.components) + 1

    def scratch_nbytes(self, matrix: ChunkedMatrix) -> Callable[[int], int]:
        """Scratch of the projection and of the joined columns."""
        beside = self.projection.scratch_nbytes(matrix)
        return lambda length: beside(length) + 8 * self.width * length


@estimator
class GenotypePCA(LinearModel):
    """Exact PCA of genotypes: what ``plink2 --pca meanimpute`` and smartpca compute, and how sure.

    Values are copies of an allele, 0 to ``ploidy``. A missing call counts as the variant's mean.

    Attributes
    ----------
    scores_ (n, k), eigenvectors_ (n, k), eigenvalues_ (k,) of ZZ'/M with M variants used
    (``explained_variance_`` are those of the covariance, n - 1 in place of M), components_ (k, p),
    explained_variance_ratio_ of the TOTAL variance, frequencies_ (p,) of the counted allele,
    tracy_widom_, n_features_used_, ``result_.dropped`` (all missing), ``.constant``
    (monomorphic), ``.filtered`` (rare or ill-called), ``.missing`` (p,),
    ``.missing_by_sample`` (n,) of all samples, in all features given, certificate_, plan_, cost_.

    Cost
    ----
    One pass and n^2 p flops for scores and spectrum, a second one for loadings; n^2 float64 and a
    few blocks of memory, and 8 (k + 6) bytes a variant unless ``loadings`` streams them.

    Warns LocalComponentWarning where one short region makes a component; NonFounderWarning where
    samples are fitted together with both of their parents.
    Source: Patterson, Price and Reich 2006, PLoS Genetics 2, e190, "Methods".
    """

    n_components: int | float | str | None = parameter(
        default=10,
        kw_only=False,
        counts_components=True,
        meaning="""int, share (0 < x < 1), "tracy-widom" (the significant ones at 0.05), "gap" or
            None (all).""",
    )
    scale: str | None = parameter(
        default="hwe",
        meaning=""""hwe" ((g - 2f) / sqrt(2f(1-f))), "eigensoft" (f with the prior of smartpca,
            divided by sqrt(f(1-f))), "std" or None.""",
    )
    ploidy: int = parameter(default=2, meaning="most copies a call can have.")
    maf: float = parameter(
        default=0.0, meaning="variants whose rarer allele is less frequent are left out."
    )
    max_missing: float = parameter(
        default=1.0,
        meaning="""variants with a larger share of missing calls are left out (PLINK's --geno).""",
    )
    max_sample_missing: float = parameter(
        default=1.0,
        meaning="""samples with a larger share of missing calls are left out, before the variants
            are judged (PLINK's --mind). 1 keeps all; less costs a pass of its own.""",
    )
    variants: VariantFilter = parameter(
        default=VariantFilter(),
        kept=Kept.RECORD,
        needs_data=True,
        meaning="""a :class:`VariantFilter`: chromosomes (autosomes by default), ids, regions,
            long-range LD.""",
    )
    keep: Names | None = parameter(
        default=None,
        kept=Kept.RECORD,
        needs_data=True,
        meaning="samples to use: ids, or a file of them.",
    )
    remove: Names | None = parameter(
        default=None,
        kept=Kept.RECORD,
        needs_data=True,
        meaning="samples to leave out: ids, or a file of them.",
    )
    fit_samples: Names | None = parameter(
        default=None,
        kept=Kept.RECORD,
        needs_data=True,
        meaning="""ids or a file: the components are fitted on these (unrelated) samples, and all
            are scored. Frequencies are those of the fitted ones. The scores of the others
            are plain projections, a missing call at the mean: they are shrunken towards the
            centre, the more so the more variants there are for each fitted sample;
            ``project_samples(..., shrinkage="oadp")`` corrects for it. With solver
            "scatter" they cost one more pass.""",
    )
    components: bool = parameter(
        default=True, meaning="False saves the second pass; no loadings, and no ``fit_samples``."
    )
    loadings: str | os.PathLike[str] | None = parameter(
        default=None,
        kept=Kept.RECORD,
        meaning="""path of a new Zarr group: the second pass streams the components there, variant
            block by variant block, (p, k) unit columns in ``components`` beside the
            variants' labels, means, variances, scales, missing calls and why a variant was
            left out (``left_out``: 0 = used, 1 = no call, 2 = monomorphic, 3 = filtered).
            Nothing of a variant is then held: those fields of ``result_`` are read when
            they are asked for, ``components_`` is read from there each time;
            ``result_.with_components(path)`` where the group was moved. There they are
            orthonormal to the rounding of the products, and 0 after the rank. The solver is
            then "gram".""",
    )
    relationship: str | os.PathLike[str] | None = parameter(
        default=None,
        kept=Kept.RECORD,
        meaning="""path of a new Zarr group for the relationship matrix ZZ'/M: ``relationship`` (n,
            n) of the fitted samples, with their labels. The solver is then "gram".""",
    )
    svd_solver: str = parameter(
        default="auto",
        meaning="""as in :class:`PCA`; "auto" iterates only where the exact solver does not fit.""",
    )
    tol: float | None = parameter(default=None, meaning="as :class:`PCA`.")
    max_passes: int | None = parameter(default=None, meaning="as :class:`PCA`.")
    random_state: Any = shared.RANDOM_STATE
    rates: Any = shared.RATES

    whiten = False
    missing = "mean"

    # -- fitting --------------------------------------------------------------------------------

    def plan(self, X: Any, *, dim: Any = None) -> Plan:
        """What ``fit`` would do with X, (n, p). Reads no calls. Raises as ``fit`` before reads."""
        cohort = self._cohort(self._genotypes(X, dim))
        plan = self._choose(cohort, self._asked(cohort)).plan
        if self.max_sample_missing >= 1.0:
            return plan
        return preceded(plan, plan_counting_samples(cohort.everyone, self.memory_limit))

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Self:
        """Fit to X: .bed filesets, VCF Zarr, int8 arrays with -1 = missing, or a ChunkedMatrix.

        X : samples x variants, (n, p), anything that ``streampca.open`` takes; a list or a
            pattern of paths is joined (one per chromosome).

        Raises InvalidInputError, SourceError, MemoryLimitError before reading; InvalidInputError
        while reading where values are no allele counts, and where no variant is left to use.
        """
        matrix = self._genotypes(X, dim)
        made: list[tuple[Plan, PassCost]] = []  # of a pass that counts the calls of each sample
        matrix = well_called(
            matrix,
            max_sample_missing=self.max_sample_missing,
            made=made,
            memory_limit=self.memory_limit,
            scheduler=self.scheduler,
            progress=self.progress,
        )
        cohort = self._cohort(matrix)
        self.n_features_in_ = matrix.shape[1]
        fitted_on = _fitted_rows(cohort)
        warn_of_children(fitted_on.labels.samples)
        request = self._asked(cohort, seed_of(self.random_state))
        done = execute(self._choose(cohort, request), self._running)
        self.plan_ = preceded(done.plan, *(counting for counting, _ in made))
        self.cost_, self.dim_ = [*(cost for _, cost in made), *done.costs], dim
        labels = Labels(cohort.everyone.labels.samples, matrix.labels.features)
        self.result_: PrincipalComponents = assemble(
            self.registered_name,
            done.answer,
            fitted_on.shape[0],
            labels,
            request,
            self._stored_parameters(request),
            self.plan_,
            self.cost_,
            matrix.fingerprint(),
            memory=done.memory,
        )
        if self.result_.scores is None or len(self.result_.scores) < matrix.shape[0]:
            scores, holes = self._project_all(cohort.everyone)
            self.result_ = replace(self.result_, scores=scores, missing_by_sample=holes)
        if request.cohort is not None:
            chosen = np.zeros(len(cohort.everyone.labels.samples), np.bool_)
            chosen[cohort.rows] = True
            self.result_ = replace(self.result_, fitted=chosen)
        held = self.result_.components
        columns: Any = None if held is None else held.T
        if self.loadings is not None:
            columns = labelled_rows(self.loadings, COMPONENTS)
        warn_of_local_components(columns, self.result_.labels.features)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:  # type: ignore[override]
        """Fit, and the scores of all samples, (n, k): no further pass."""
        return np.array(self.fit(X, dim=dim).scores_)

    def _request(self, matrix: ChunkedMatrix) -> Request:
        """The request of the parameters for a matrix, for the solvers."""
        tol, max_passes = iteration_limits(self.tol, self.max_passes)
        return Request.of(
            self,
            tol=tol,
            max_passes=max_passes,
            exact_first=True,
            random_state=0,
            code_assumed=coding_is_assumed(matrix, self.scale in ALLELE_SCALES),
            loadings=_text(self.loadings),
            relationship=_text(self.relationship),
        )

    def _stored_parameters(self, request: Request) -> dict[str, Any]:
        """The parameters as stored with a result, with those that all genotype fits share."""
        fixed = {"whiten": False, "center": True, "ddof": 1, "missing": self.missing}
        outputs = {"loadings": request.loadings, "relationship": request.relationship}
        seed = {"random_state": request.random_state, "exact_first": True}
        return fixed | self.stored_params() | outputs | seed

    def _genotypes(self, X: Any, dim: Any = None) -> ChunkedMatrix:
        """The samples and variants to use, before any call is read."""
        matrix = with_missing_calls(as_matrix(X, dim=dim, missing_value=self.missing_value))
        if not 0.0 <= self.max_sample_missing <= 1.0:
            raise InvalidInputError(
                f"max_sample_missing={self.max_sample_missing!r}; expected a share in [0, 1]"
            )
        return filter_genotypes(matrix, self.variants, self.keep, self.remove)

    def _options(self, rows: ChunkedMatrix | LazyRows) -> RowOptions:
        counts = self.scale in ALLELE_SCALES
        if isinstance(rows, LazyRows):
            unstated = rows.matrix is None or copies_are_unstated(rows.matrix)
            unstated &= counts or rows.rows.dtype.kind == "i"
        else:
            unstated = coding_is_assumed(rows, counts)
        return replace(super()._options(rows), unstated=unstated and rows.design is None)

    def _missing_code(self, dtype: np.dtype[Any]) -> float | None:
        code = super()._missing_code(dtype)
        return MISSING_CALL if code is None and dtype.kind == "i" else code

    def _cohort(self, matrix: ChunkedMatrix) -> Cohort:
        rows = np.arange(matrix.shape[0])
        if self.fit_samples is not None:
            if not self.components:
                raise InvalidInputError("fit_samples needs components=True to score the others")
            mask = sample_mask(matrix.labels.samples, self.fit_samples, "fit_samples")
            rows = np.flatnonzero(mask)
        return Cohort(matrix, rows)

    def _asked(self, cohort: Cohort, seed: int = 0) -> Request:
        """The checked request of the parameters for a cohort.  seed : drawn by a fit."""
        fitted_on = _fitted_rows(cohort)
        request = self._request(cohort.everyone)
        request.check(fitted_on.shape)
        if self.loadings is not None and not self.components:
            raise InvalidInputError("loadings= needs the pass that components=False saves")
        outputs = {"loadings": request.loadings, "relationship": request.relationship}
        _refuse_outputs({name: path for name, path in outputs.items() if path is not None})
        partial = cohort if fitted_on is not cohort.everyone else None
        return request.bound(random_state=seed, cohort=partial)

    def _choose(self, cohort: Cohort, request: Request) -> Planned[Fitted]:
        return choose_pca(_fitted_rows(cohort), request, "GenotypePCA")

    def _project_all(self, everyone: ChunkedMatrix) -> tuple[Array, Array]:
        """(scores, missing calls) of all samples by a pass of their own, where the solver does not
        give them on its way."""
        projection = Projection.of(self.result_, RowOptions(missing="mean"))
        projection = replace(projection, counts=None)  # the fit has looked at these calls
        if easier_axis(everyone) == 1:
            operands, settings = projection.operands()
            parts = {"scores": FeatureProjection(**settings), "rows": RowMissing()}
            done = self._passes(everyone).fold("transform", 1, parts, operands)
            return done["scores"].projected(), done["rows"].counts()
        both = ScoresAndHoles(projection)
        values = self._passes(everyone).mapped("transform", both).in_memory(both.width)
        return values[:, :-1].copy(), values[:, -1].astype(np.int64)

    # -- results --------------------------------------------------------------------------------

    def _fitted(self) -> PrincipalComponents:
        return self._result_as(PrincipalComponents)

    @property
    def scores_(self) -> Array:
        """(n, k) projections of all samples: eigenvectors times singular values."""
        scores = self._fitted().scores
        assert scores is not None
        return scores

    @property
    def eigenvectors_(self) -> Array:
        """(n, k) scores divided by the singular values: unit columns over the fitted samples."""
        return eigenvectors(self._fitted())

    @property
    def eigenvalues_(self) -> Array:
        """(k,) of the relationship matrix ZZ'/M, M variants used (PLINK's .eigenval; PLINK counts
        monomorphic variants in M too, where no ``--maf`` takes them out)."""
        return eigenvalues(self._fitted())

    @property
    def frequencies_(self) -> Array:
        """(p,) of the counted allele, among the calls of the fitted samples; NaN without a call."""
        return frequencies(self._fitted())

    @property
    def tracy_widom_(self) -> TracyWidom:
        """Significance of each component (EIGENSOFT's test)."""
        return self._fitted().tracy_widom()


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def _fitted_rows(cohort: Cohort) -> ChunkedMatrix:
    if len(cohort.rows) == cohort.everyone.shape[0]:
        return cohort.everyone
    return select(cohort.everyone, samples=cohort.rows)


def _refuse_outputs(paths: Mapping[str, str]) -> None:
    """Refuse outputs that exist, or that share a path, before reading."""
    for name, path in paths.items():
        if occupied(path):
            raise OccupiedError(f"{name}: {path} exists already; remove it or name another")
    if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
        raise InvalidInputError(f"{' and '.join(paths)} are one path; name two")
