"""Scores of new samples on a genotype model: matched variants, least squares for missing ones."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, not_fitted, shorten, warn_caller
from streampca.genetics.genotype_result import ploidy_of, used_variants
from streampca.genetics.sample_scores import (
    SOLVE_NBYTES,
    SampleSums,
    SumsLayout,
    VariantSums,
    solve_scores,
    tile_nbytes,
)
from streampca.genetics.variant_matching import VariantMatch, match_variants
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.matrix.columns import label_array
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import (
    Candidate,
    Pass,
    PassCost,
    PassSpec,
    Plan,
    Planned,
    Running,
    Steps,
    choose,
    easier_axis,
    execute,
    pass_spec,
    single_threaded_blas,
)
from streampca.sources import as_matrix
from streampca.sources.genotypes.allele_counts import (
    copies_are_unstated,
    refuse_other_ploidy,
    with_missing_calls,
)
from streampca.store import MemorySink


@dataclass(frozen=True, repr=False)
class GenotypeProjection:
    """New samples on the components of a genotype model.

    scores : (n, k) float64, NaN for samples that show too little.
    coverage : (n,) share of the model's variants that are observed in each sample.
    loading_coverage : (n, k) share of each component's squared loadings that is; None with
        missing="mean".
    match : which variants were found, and how their alleles are written.
    samples : labels.  plan, cost : the pass that was made.
    """

    scores: Array
    coverage: Array
    loading_coverage: Array | None
    match: VariantMatch
    samples: AxisLabels
    missing: str
    shrinkage: str | None
    plan: Plan
    cost: PassCost

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), np.ndarray):
                frozen = value.view()
                frozen.flags.writeable = False
                object.__setattr__(self, field.name, frozen)

    @property
    def refused(self) -> Array:
        """(n,) True for samples without scores."""
        return np.asarray(np.isnan(self.scores).any(axis=1))

    def columns(self) -> dict[str, Array]:
        """Columns of a table, one row per sample: ids, PC1, PC2, ..., coverage."""
        ids = {name: np.asarray(values) for name, values in self.samples.coords.items()}
        ids = ids or {self.samples.dims[0]: label_array(self.samples.names())}
        scores = {f"PC{i + 1}": column for i, column in enumerate(self.scores.T)}
        return {**self.samples.extra, **ids, **scores, "coverage": self.coverage}

    def to_xarray(self) -> Any:
        """``scores`` (sample, component) and ``coverage`` (sample), as an xarray.Dataset."""
        from streampca.sources.labelled.to_xarray import to_dataset

        k = self.scores.shape[1]
        component = AxisLabels.plain("component", k, list(range(1, k + 1)))
        tables: dict[str, tuple[Array, list[AxisLabels]]] = {
            "scores": (self.scores, [self.samples, component]),
            "coverage": (self.coverage, [self.samples]),
        }
        if self.loading_coverage is not None:
            tables["loading_coverage"] = (self.loading_coverage, [self.samples, component])
        how = {"missing": self.missing, "shrinkage": self.shrinkage or "none"}
        return to_dataset(tables, {**how, **self.match.to_dict()})

    def __repr__(self) -> str:
        n, k = self.scores.shape
        return f"<GenotypeProjection: {n} samples on {k} components, {self.match}>"


MISSING = ("least_squares", "mean")
SHRINKAGE = (None, "oadp")
VARIANT_NBYTES = 128  # labels and matches of one variant, the model's or new


def project_samples(
    model: Any,
    X: Any,
    *,
    n_components: int | None = None,
    ploidy: int | None = None,
    match: str = "auto",
    ambiguous: str = "auto",
    missing: str = "least_squares",
    min_coverage: float = 0.5,
    shrinkage: str | None = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> GenotypeProjection:
    """Scores of new samples, one or many, on the components of a genotype model.

    model : a fitted GenotypePCA, or its ``result_``.
    X : genotypes with alleles (PLINK, VCF Zarr or another labelled matrix), (n, m): copies of
        the counted allele, dosages allowed. Variants are found and alleles turned by
        :func:`match_variants`; ``match`` and ``ambiguous`` are its settings. Variants
        that the fit did not use (dropped, constant or filtered) are ignored.
    n_components : how many of the model's first components to return; None = all. All k of the
        model are fitted in any case.
    ploidy : copies of an autosome; None = as in the fit.
    missing : "least_squares": with V_o the loadings of the variants observed in a sample,
        its scores are (V_o'V_o)^-1 V_o'z, so that they do not shrink towards 0 with every
        missing variant; "mean": a missing call counts as the mean of the fit.
    min_coverage : samples in which a smaller share of the model's variants is observed get NaN,
        with a LowCoverageWarning. So do samples that leave a direction of the components
        almost undetermined (less than 0.001 of its squared loadings observed).
    shrinkage : None, or "oadp": undo the shrinkage of samples that were not in the fit
        (:func:`oadp_scores`), using all components of the model: fit about twice as many as you
        interpret. The part of a sample outside the components is taken to be as large, per
        variant, among the missing variants as among the observed ones. Not for samples of the
        fit: a warning says how many have the name of one.

    Centre and scale are those of the fit. With all variants observed, the plain scores are those
    that ``transform`` gives.

    Cost: one pass, float64; 2 n m k flops, and n m (k + 1)(k + 2) where calls are missing.
    Memory: n (k + 1)(k + 4) / 2 numbers per lane, m (k + 2) for the loadings, a few blocks.
    Raises InvalidInputError for unknown settings, where no variant or no sample reaches
    ``min_coverage``, and for values that are no allele counts; MemoryLimitError before reading.
    Source: Nelson, Taylor and MacGregor 1996, "Missing data methods in PCA and PLS: score
    calculations with incomplete observations", section on projection to the model plane.

    Examples
    --------
    >>> import xarray as xr
    >>> calls = np.random.default_rng(0).integers(0, 3, (30, 50)).astype("i1")
    >>> alleles = {name: ("variant", [base] * 50) for name, base in
    ...            [("counted_allele", "A"), ("other_allele", "G")]}
    >>> ids = {"variant": [f"rs{i}" for i in range(50)]}
    >>> calls = xr.DataArray(calls, dims=("sample", "variant"), coords=alleles | ids)
    >>> model = streampca.GenotypePCA(2).fit(calls[:20], dim="sample")
    >>> new = streampca.open(calls[20:], dim="sample")
    >>> streampca.project_samples(model, new).scores.shape
    (10, 2)
    """
    result = _decomposition(model)
    _check_settings(result, missing, min_coverage, shrinkage, n_components)
    matrix = with_missing_calls(as_matrix(X, missing_value=missing_value))
    if shrinkage is not None:
        _warn_of_fitted(result, matrix.labels.samples)
    used = used_features(result)
    record = match_variants(
        result.labels.features.pick(used), matrix.labels.features, match, ambiguous
    )
    record = replace(record, model=used[record.model])
    if not record.n_matched or record.n_matched < min_coverage * len(used):
        raise InvalidInputError(
            f"{record}. min_coverage={min_coverage:g} needs at least "
            f"{max(1, int(np.ceil(min_coverage * len(used))))}. Genome builds and names of the "
            "two must agree (match='id' or match='position'); a lower min_coverage= accepts less."
        )
    layout = SumsLayout(
        result.n_components,
        ploidy_of(result) if ploidy is None else ploidy,
        missing == "least_squares",
        shrinkage is not None,
        copies_are_unstated(matrix),
    )
    refuse_other_ploidy(matrix, layout.ploidy, "project_samples")
    aligned = _aligned(result, record, layout.ploidy)
    planned = _choose(matrix, layout, result.n_features, memory_limit, aligned)
    done = execute(planned, Running(memory_limit, scheduler, progress))
    with single_threaded_blas():
        solved = solve_scores(
            done.answer, layout, aligned["loadings"], record.n_matched, len(used), min_coverage
        )
        if shrinkage is not None:
            solved.unshrink(result.singular_values)
    k = result.n_components if n_components is None else n_components
    solved.refuse(matrix.labels.samples, min_coverage)
    return GenotypeProjection(
        np.ascontiguousarray(solved.scores[:, :k]),
        solved.coverage,
        None if solved.seen is None else np.ascontiguousarray(solved.seen[:, :k]),
        record,
        matrix.labels.samples,
        missing,
        shrinkage,
        done.plan,
        done.costs[0],
    )


def used_features(result: PrincipalComponents) -> Array:
    """Features that the fit used: not dropped, constant or filtered."""
    used = used_variants(result)
    if result.scale is not None:
        used &= result.scale > 0
    return np.flatnonzero(used)


def _decomposition(model: Any) -> PrincipalComponents:
    """The result of a fitted model, or a result itself. Raises InvalidTypeError, NotFittedError."""
    result = getattr(model, "result_", model)
    if isinstance(result, PrincipalComponents):
        return result
    if result is model and hasattr(model, "fit"):
        raise not_fitted(type(model).__name__)
    raise InvalidTypeError(f"got {type(result).__name__}; expected a fitted GenotypePCA")


def _warn_of_fitted(result: PrincipalComponents, new: AxisLabels) -> None:
    """Warn of samples that have the name of a sample of the fit."""
    samples = result.labels.samples
    if not (samples.named and new.named):
        return
    fitted = {*(samples if result.fitted is None else samples.pick(result.fitted)).names()}
    both = [name for name in new.names() if name in fitted]
    if both:
        warn_caller(
            f"{len(both)} of {len(new)} samples have the name of a sample of the fit "
            f"({shorten(both)}). Scores of those in the fit are not shrunken, so "
            "the correction makes them too large: leave such samples out (streampca project "
            "--remove FILE), or take their scores from the fit",
            UserWarning,
        )


def _check_settings(
    result: PrincipalComponents,
    missing: str,
    min_coverage: float,
    shrinkage: str | None,
    n_components: int | None,
) -> None:
    if result.components is None and result.streamed_to is None:
        result.require_components()  # raises; components in Zarr are read once variants are matched
    if missing not in MISSING:
        raise InvalidInputError(f"missing={missing!r}; expected one of {MISSING}")
    if shrinkage not in SHRINKAGE:
        raise InvalidInputError(f"shrinkage={shrinkage!r}; expected one of {SHRINKAGE}")
    if not 0.0 <= min_coverage <= 1.0:
        raise InvalidInputError(f"min_coverage={min_coverage!r}; expected a share in [0, 1]")
    if n_components is not None and not 1 <= n_components <= result.n_components:
        raise InvalidInputError(
            f"n_components={n_components!r}; the model has 1 to {result.n_components}"
        )
    if shrinkage is not None and not np.all(np.isfinite(result.singular_values)):
        raise InvalidInputError(
            f"shrinkage={shrinkage!r} needs singular values, and this model, made from a "
            "covariance, does not know the number of samples; fit GenotypePCA to genotypes, or "
            "take shrinkage=None"
        )


# -- the pass -------------------------------------------------------------------------------------


def _aligned(result: PrincipalComponents, match: VariantMatch, ploidy: int) -> dict[str, Array]:
    """Center, scale (0 = not used) and loadings for each new variant.

    Where alleles are swapped, x stands for ploidy - x: z = -(x - (ploidy - mean)) / scale, so
    the center is ploidy - mean, and the loading has the other sign.
    """
    swapped, model, new = match.swapped, match.model, match.new
    center, scale = np.zeros(match.n_new), np.zeros(match.n_new)
    loadings = np.zeros((match.n_new, result.n_components))
    center[new] = np.where(swapped, ploidy - result.mean[model], result.mean[model])
    scale[new] = 1.0 if result.scale is None else result.scale[model]
    sign = np.where(swapped, -1.0, 1.0)
    loadings[new] = sign[:, None] * result.require_components()[:, model].T
    return {"center": center, "scale": scale, "loadings": loadings}


def _choose(
    matrix: ChunkedMatrix,
    layout: SumsLayout,
    n_features: int,
    memory_limit: int | str | None,
    aligned: dict[str, Array],
) -> Planned[Array]:
    """One pass, along the axis with smaller blocks unless only the other fits.

    aligned : center, scale and loadings of the variants.
    """
    n, m = matrix.shape
    held = 2 * m * (layout.k + 2) * 8 + (n_features + m) * VARIANT_NBYTES
    flops = float(n) * m * 2 * layout.width
    total = n * layout.width * 8
    features = pass_spec(
        "project", matrix, 1, {"sums": VariantSums(layout=layout)}, kept_nbytes=held, flops=flops
    )
    samples = PassSpec(
        "project",
        0,
        0,
        0,
        lambda length: tile_nbytes(length, m),
        kept_nbytes=held + total,
        flops=flops,
    )
    solving = {"sums": total, "scores": n * 4 * layout.k * 8, "equations": SOLVE_NBYTES}
    reason = f"one pass over {{}}; then a system of {layout.k} equations per sample"
    candidates = [
        Candidate(
            "features",
            reason.format("variants"),
            (features,),
            solving,
            solve=partial(_by_variants, spec=features, layout=layout, aligned=aligned),
        ),
        Candidate(
            "samples",
            reason.format("samples"),
            (samples,),
            solving,
            solve=partial(_by_samples, spec=samples, layout=layout, aligned=aligned),
        ),
    ]
    if easier_axis(matrix, preferred=1) == 0:
        candidates.reverse()
    return choose(matrix, "projection", candidates, memory_limit)


def _by_variants(
    planned: Planned[Array], *, spec: PassSpec, layout: SumsLayout, aligned: dict[str, Array]
) -> Steps[Array]:
    """Sums of every sample over streamed variants."""
    sums: Array = (yield Pass(spec, side_inputs=aligned))["sums"].sums
    return sums


def _by_samples(
    planned: Planned[Array], *, spec: PassSpec, layout: SumsLayout, aligned: dict[str, Array]
) -> Steps[Array]:
    """Sums of every streamed sample."""
    sink = MemorySink(planned.matrix.shape[0], layout.width)
    maps = {"sums": SampleSums(layout)}
    yield Pass(spec, maps=maps, sinks={"sums": sink}, operands=aligned)
    return sink.values
