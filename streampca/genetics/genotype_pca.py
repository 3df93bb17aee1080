"""Exact principal components of genotypes: standardised counts, missing calls at the mean.

The request of such a fit, and the estimator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.genetics.all_scores import project_all
from streampca.genetics.counts import (
    SAMPLES,
    all_read,
    counting_samples,
    of_samples,
    well_called_samples,
)
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.genetics.fit_warnings import (
    Relatives,
    relatives_in,
    warn_of_children,
    warn_of_inbred,
    warn_of_local_components,
    warn_of_samples,
)
from streampca.genetics.genotype_result import GenotypeComponents
from streampca.genetics.id_lists import Names
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix, Labels, Standardize, select
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Request, iteration_limits
from streampca.models.decompose.assemble import Fitted, assemble
from streampca.models.decompose.gram_outputs import Cohort, GramOutputs
from streampca.models.decompose.routes import pca_candidates
from streampca.models.results.linear_result import COMPONENTS
from streampca.models.results.row_maps import RowOptions
from streampca.models.rows.new_rows import LazyRows
from streampca.passes import Candidate, Outcome, Planned
from streampca.solvers import Spectrum, TracyWidom
from streampca.sources.genotypes.allele_counts import (
    MISSING_CALL,
    copies_are_unstated,
    refuse_other_ploidy,
    with_missing_calls,
)
from streampca.store import labelled_rows

if TYPE_CHECKING:
    from streampca.genetics.joint_read import JointRead
    from streampca.genetics.kinship_result import Kinship
    from streampca.genetics.pcair import SamplePartition


@dataclass(frozen=True, kw_only=True)
class GenotypeRequest(Request):
    """The request of a fit of allele counts.

    ploidy, maf, max_missing, code_assumed : as :class:`Standardize`.
    outputs : groups to write, and samples to score in addition to the fitted ones.
    divided : how the fitted samples were chosen, JSON-ready; None where all are fitted.
    """

    ploidy: int = 2
    maf: float = 0.0
    max_missing: float = 1.0
    code_assumed: bool = False
    outputs: GramOutputs
    divided: dict[str, Any] | None = None

    def _standardized(self) -> Standardize:
        return Standardize(
            self.center,
            self.scale,
            self.ddof,
            self.ploidy,
            self.maf,
            self.max_missing,
            self.code_assumed,
            counts=True,
        )

    def refuse_unused(self, used: int, total: int) -> None:
        """Raise InvalidInputError where no variant is used."""
        if not used:
            raise InvalidInputError(
                f"none of {total} variants is left: all are monomorphic, without a call, rarer "
                f"than maf={self.maf:g}, or with more than max_missing={self.max_missing:g} of "
                "their calls missing"
            )

    def relatives_in(self, lower: Array, spectrum: Spectrum) -> Relatives:
        """Pairs of fitted samples that are close relatives."""
        return relatives_in(lower, spectrum)

    def stored(self) -> dict[str, Any]:
        """The settings that are kept with a result, in addition to those of the estimator."""
        fixed = {"whiten": False, "center": True, "ddof": 1}
        paths = {"loadings": self.outputs.loadings, "relationship": self.outputs.relationship}
        drawn = {"random_state": self.random_state, "exact_first": True}
        return fixed | paths | drawn | {"unrelated": self.divided}


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
    ``.missing_by_sample`` (n,) of all samples, in all features given, ``.relatives`` (m, 2) fitted
    samples of kinship .177 or more and ``.relatives_kinship`` (m,), certificate_, plan_, cost_,
    kinship_ where ``kinship`` asked for it.

    Cost
    ----
    One pass and n^2 p flops for scores and spectrum, a second one for loadings; n^2 float64 and a
    few blocks of memory, and 8 (k + 6) bytes a variant unless ``loadings`` streams them.

    Warns LocalComponentWarning where one short region makes a component; NonFounderWarning where
    samples are fitted together with both of their parents; RelatedSamplesWarning where one sample,
    near-identical ones or relatives make a component, and, by the n x n matrix of a wide fit, of
    fitted samples whose kinship is .177 or more.
    Source: Patterson, Price and Reich 2006, PLoS Genetics 2, e190, "Methods".

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import GenotypePCA
    >>> calls = np.random.default_rng(0).integers(0, 3, size=(20, 100)).astype("int8")
    >>> model = GenotypePCA(2).fit(calls)
    >>> model.scores_.shape, model.eigenvalues_.shape
    ((20, 2), (2,))
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
    kinship: VariantFilter | bool | None = parameter(
        default=None,
        kept=Kept.RECORD,
        needs_data=True,
        meaning="""also count KING-robust kinship of all samples in the read of the Gram matrix, as
            :func:`streampca.kinship`, over the variants of this filter that pass ``maf`` and
            ``max_missing`` (True: the autosomes): all variants, where ``variants`` are those
            that LD pruning leaves. It is in ``kinship_``, and is not saved with the model.
            The solver is then "gram".""",
    )
    keep: Names | None = parameter(
        default=None,
        kept=Kept.RECORD,
        needs_data=True,
        meaning="samples to use: ids, or a file of them.",
    )
    exclude: Names | None = parameter(
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
            centre, the more so the more variants there are for each fitted sample, unless
            ``shrinkage`` corrects for it. With solver "scatter" they cost one more pass.""",
    )
    unrelated: Names | SamplePartition | None = parameter(
        default=None,
        kept=Kept.RECORD,
        needs_data=True,
        meaning=""""auto": fit on the unrelated samples that :func:`pcair_partition` finds by
            KING-robust kinship, and score all as ``fit_samples`` does. It costs one pass before
            the others, over all autosomal variants that pass the filters: give unpruned ones. Or
            a list of unrelated samples (ids, a file of them, or a mask (n,)), or a partition.""",
    )
    shrinkage: str | None = parameter(
        default=None,
        choices=(None, "oadp"),
        meaning=""""oadp": undo the shrinkage of the scores of samples that were not fitted, as
            :func:`project_samples` does, a missing call at the mean; by all components of the fit.
            Relatives of fitted ones are shrunken less than that. ``transform`` stays plain.""",
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
    missing: str = parameter(
        default="mean",
        choices=("mean", "pairwise"),
        meaning="""of calls. "mean": one holds its variant's mean, as in smartpca and plink2's
            ``--pca meanimpute``. "pairwise": the relationship of two samples is the mean over the
            variants that both have, as in plink2's ``--pca`` and :func:`streampca.grm`, monomorphic
            ones counted. That matrix need not be positive semidefinite; what is certified are its
            eigenpairs. Components are then unit columns Z'u that are not quite orthogonal, and
            ``transform`` shrinks samples with missing calls, also fitted ones, where
            ``project_samples`` does not. The solver is then "gram".""",
    )
    solver: str = parameter(
        default="auto",
        meaning="""as in :class:`PCA`; "auto" iterates only where the exact solver does not fit.""",
    )
    tol: float | None = parameter(default=None, meaning="as :class:`PCA`.")
    max_passes: int | None = parameter(default=None, meaning="as :class:`PCA`.")
    random_state: Any = shared.RANDOM_STATE
    rates: Any = shared.RATES

    whiten = False
    kinship_: Kinship | None = None

    # -- fitting --------------------------------------------------------------------------------

    def _opened(self, X: Any, dim: Any) -> ChunkedMatrix | JointRead:
        """The samples and variants to use, before any call is read."""
        matrix = with_missing_calls(super()._opened(X, dim))
        if self.kinship is not None and self.kinship is not False:
            from streampca.genetics.joint_read import JointRead

            return JointRead.of(matrix, self.variants, self.kinship, self.keep, self.exclude)
        return filter_genotypes(matrix, self.variants, self.keep, self.exclude)

    def _preparation(self, opened: ChunkedMatrix | JointRead) -> Planned[Any] | None:
        """The passes that count the calls of samples, and the kinship that the fit needs."""
        limit = self.max_sample_missing
        if self._finds_unrelated:
            from streampca.genetics.fit_samples import finding_unrelated

            return finding_unrelated(self, opened)
        if limit == 1.0:
            return None
        return counting_samples(all_read(opened), limit, self.memory_limit)

    @property
    def _finds_unrelated(self) -> bool:
        return isinstance(self.unrelated, str) and self.unrelated == "auto"

    def _prepared(
        self, opened: Any, answer: Any
    ) -> tuple[ChunkedMatrix | JointRead, dict[str, Any]]:
        if self._finds_unrelated:
            return answer.matrix, {"partition": answer.partition}
        lost = answer[SAMPLES].counts()
        kept = well_called_samples(all_read(opened), lost, self.max_sample_missing)
        return of_samples(opened, kept), {}

    def _bound(
        self,
        opened: ChunkedMatrix | JointRead,
        *,
        seed: int = 0,
        partition: SamplePartition | None = None,
    ) -> tuple[ChunkedMatrix, Any]:
        """The samples to fit, and what is asked of them; all of them are scored."""
        joint = opened
        opened = opened if isinstance(opened, ChunkedMatrix) else opened.of_fit
        fitted, cohort, divided = opened, None, None
        if self.fit_samples is not None or self.unrelated is not None:
            from streampca.genetics.fit_samples import samples_to_fit

            if not self.components:
                name = "fit_samples" if self.unrelated is None else "unrelated"
                raise InvalidInputError(f"{name} needs components=True to score the others")
            rows, divided = samples_to_fit(opened, self.fit_samples, self.unrelated, partition)
            unknown = self._finds_unrelated and partition is None  # how many are related
            if len(rows) < opened.shape[0] or unknown:
                fitted = opened if unknown else select(opened, samples=rows)
                cohort = Cohort(opened, rows, residuals=self.shrinkage is not None)
        elif self.shrinkage is not None:
            raise InvalidInputError(
                "shrinkage= corrects scores of samples that are not fitted; add unrelated='auto' "
                "or fit_samples="
            )
        same_read = None
        if not isinstance(joint, ChunkedMatrix):
            some = None if cohort is None else cohort.rows
            same_read = joint.same_read(some, self.maf, self.max_missing)
        tol, max_passes = iteration_limits(self.tol, self.max_passes)
        refuse_other_ploidy(opened, self.ploidy)
        request = GenotypeRequest.of(
            self,
            tol=tol,
            max_passes=max_passes,
            exact_first=True,
            random_state=seed,
            code_assumed=copies_are_unstated(opened),
            missing="mean",
            outputs=GramOutputs.at(
                self.loadings,
                self.relationship,
                cohort=cohort,
                same_read=same_read,
                joint=self._joint(fitted),
            ),
            divided=divided,
        )
        request.check(fitted.shape)
        if self.loadings is not None and not self.components:
            raise InvalidInputError("loadings= needs the pass that components=False saves")
        request.outputs.refuse_occupied()
        return fitted, request

    def _candidates(
        self, matrix: ChunkedMatrix, request: GenotypeRequest
    ) -> list[Candidate[Fitted]]:
        return pca_candidates(matrix, request, request.outputs)

    def _remark(self, matrix: ChunkedMatrix, request: GenotypeRequest) -> None:
        warn_of_children(matrix.labels.samples)

    def _result(
        self, matrix: ChunkedMatrix, request: GenotypeRequest, done: Outcome[Fitted]
    ) -> GenotypeComponents:
        self.result_: GenotypeComponents
        outputs, everyone = request.outputs, matrix
        described = self._described(matrix, done, **request.stored())
        if outputs.cohort is not None:
            everyone = outputs.cohort.everyone
            described["labels"] = Labels(everyone.labels.samples, matrix.labels.features)
        if (found := done.answer.relatives) is not None:
            fitted_rows = None if outputs.cohort is None else outputs.cohort.rows
            described |= found.among(fitted_rows)
        result = assemble(done.answer, request, described, GenotypeComponents)
        self.kinship_ = self._kinship(done.answer.others, described)
        if outputs.cohort is not None:
            fitted = np.zeros(everyone.shape[0], np.bool_)
            fitted[outputs.cohort.rows] = True
            result = replace(result, fitted=fitted)
            if done.answer.squares is not None:
                from streampca.genetics.fit_samples import without_shrinkage

                result = replace(result, scores=without_shrinkage(result, done.answer.squares))
        if result.scores is None or len(result.scores) < everyone.shape[0]:
            options, running = self._options(everyone), self._running_once
            scores, holes = project_all(result, everyone, options, running)
            result = replace(result, scores=scores, missing_by_sample=holes)
        held = result.components
        columns: Any = None if held is None else held.T
        if outputs.loadings is not None:
            columns = labelled_rows(outputs.loadings, COMPONENTS)
        warn_of_local_components(columns, result.labels.features)
        warn_of_samples(result.findings())
        if copies_are_unstated(everyone):
            warn_of_inbred(result, self.scale)
        return result

    def _joint(self, matrix: ChunkedMatrix) -> Any:
        """What counts the calls that two samples share, where means are over these."""
        if self.missing == "mean":
            return None
        if self.missing != "pairwise":
            raise InvalidInputError(f"missing={self.missing!r}; expected 'mean' or 'pairwise'")
        from streampca.genetics.joint_calls import JointCalls

        return JointCalls.of(self.maf, self.max_missing, copies_are_unstated(matrix))

    def _kinship(self, sums: Mapping[str, Any], described: Mapping[str, Any]) -> Kinship | None:
        """The kinship that the fit counted, if it was asked."""
        if not sums:
            return None
        from streampca.genetics.joint_read import kinship_of

        return kinship_of(sums, described)

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:  # type: ignore[override]
        """Fit, and the scores of all samples, (n, k): no further pass."""
        return np.array(self.fit(X, dim=dim).scores_)

    def _options(self, rows: ChunkedMatrix | LazyRows) -> RowOptions:
        matrix = rows.matrix if isinstance(rows, LazyRows) else rows
        unstated = matrix is None or copies_are_unstated(matrix)
        return replace(super()._options(rows), unstated=unstated and rows.design is None)

    def _missing_code(self, dtype: np.dtype[Any]) -> float | None:
        code = super()._missing_code(dtype)
        return MISSING_CALL if code is None and dtype.kind == "i" else code

    # -- results --------------------------------------------------------------------------------

    def _fitted(self) -> GenotypeComponents:
        return self._result_as(GenotypeComponents)

    @property
    def scores_(self) -> Array:
        """(n, k) projections of all samples: eigenvectors times singular values."""
        scores = self._fitted().scores
        assert scores is not None
        return scores

    @property
    def eigenvectors_(self) -> Array:
        """(n, k) scores divided by the singular values: unit columns over the fitted samples."""
        return self._fitted().eigenvectors

    @property
    def eigenvalues_(self) -> Array:
        """(k,) of the relationship matrix ZZ'/M, M variants used (PLINK's .eigenval; PLINK counts
        monomorphic variants in M too, where no ``--maf`` takes them out)."""
        return self._fitted().eigenvalues

    @property
    def frequencies_(self) -> Array:
        """(p,) of the counted allele, among the calls of the fitted samples; NaN without a call."""
        return self._fitted().frequencies

    @property
    def tracy_widom_(self) -> TracyWidom:
        """Significance of each component (EIGENSOFT's test)."""
        return self._fitted().tracy_widom()
