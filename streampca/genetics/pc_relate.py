"""PC-Relate: kinship and inbreeding of samples of mixed ancestry, in one pass over the variants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, not_fitted
from streampca.genetics.filters import VariantFilter
from streampca.genetics.id_lists import Names
from streampca.genetics.kinship_result import PairwiseKinship, SamplePairs
from streampca.genetics.pair_passes import AUTOSOMES, PairSettings, none_left, sum_over_pairs
from streampca.genetics.pc_relate_sums import AdjustedSums
from streampca.genetics.regression_bias import undo_regression
from streampca.genetics.tables import identifiers, six_digits, write_lines
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, Standardize
from streampca.models.results.decomposition import PrincipalComponents
from streampca.passes import (
    Candidate,
    PassResult,
    Planned,
    Running,
    choose,
    pass_spec,
    single_threaded_blas,
    with_arrays,
)

METHOD = "PC-Relate"
ADJUSTED = "adjusted kinship"  # the name of the pass, and of its sums


@dataclass(frozen=True, repr=False, kw_only=True)
class AdjustedKinship(PairwiseKinship):
    """Kinship of every two of n samples, adjusted for their ancestry by PC-Relate.

    phi : (n, n) float64, symmetric; (1 + inbreeding) / 2 on the diagonal; nan without variants.
    nsnp : (n, n) int32 variants that both samples have.
    n_variants : that counted.  samples : labels.
    settings : of :func:`pc_relate`.  provenance : source, cost and versions.  plan : what was run.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> calls = np.random.default_rng(0).binomial(2, 0.5, size=(20, 3000)).astype("int8")
    >>> found = streampca.pc_relate(calls, streampca.GenotypePCA(1).fit(calls))
    >>> found.inbreeding.shape, found.pairs_of(19).kinship.shape
    ((20,), (19,))
    """

    kind = "adjusted kinship"
    estimator = "PC-Relate"
    by_pair = ("phi", "nsnp")
    measures_divergence = False  # of pairs of different ancestry it is 0, not negative

    phi: Array
    nsnp: Array
    n_variants: int
    samples: AxisLabels
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kinship(self) -> Array:
        """(n, n) float64, symmetric."""
        return self.phi

    @property
    def inbreeding(self) -> Array:
        """(n,) float64 coefficients, from the kinship of each sample with itself."""
        return np.asarray(2.0 * np.diagonal(self.phi) - 1.0)

    def pairs_of(self, i: int) -> SamplePairs:
        """The pairs of sample i and each sample before it."""
        nsnp = self.nsnp[i, :i].astype(np.int64)
        known = (nsnp, None, None, np.array(self.phi[i, :i]))
        return SamplePairs(np.full(i, i), np.arange(i), *known, self.samples)

    def write_inbreeding(self, path: str | os.PathLike[str], overwrite: bool = True) -> Path:
        """Write FID, IID, NSNP and F, the inbreeding coefficient, of each sample."""
        write_lines(path, self._lines_of_samples(), overwrite)
        return Path(path)

    def _lines_of_samples(self) -> Iterator[str]:
        ids = identifiers(self.samples)
        yield "#" + "\t".join([*(name for name, _ in ids), "NSNP", "F"]) + "\n"
        numbers = (np.diagonal(self.nsnp).tolist(), six_digits(self.inbreeding).tolist())
        for *who, nsnp, f in zip(*(column for _, column in ids), *numbers, strict=True):
            yield "\t".join([*map(str, who), str(nsnp), f"{f:.6g}"]) + "\n"


def pc_relate(
    X: Any,
    pca: Any,
    *,
    n_components: int | None = None,
    least_frequency: float = 0.01,
    small_sample_correction: bool = True,
    maf: float = 0.0,
    max_missing: float = 1.0,
    variants: VariantFilter = AUTOSOMES,
    keep: Names | None = None,
    exclude: Names | None = None,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> AdjustedKinship:
    """Kinship and inbreeding adjusted for ancestry: PC-Relate, overall ratio of two sums.

    mu_is is the frequency of variant s in somebody of the ancestry of sample i: half of what a
    linear regression of the calls on the components predicts, fitted to the samples of the PCA.
    phi_ij = sum (g_i - 2 mu_i)(g_j - 2 mu_j) / (4 sum sqrt(mu_i (1 - mu_i) mu_j (1 - mu_j))), over
    the variants called in both samples whose mu_i and mu_j lie within the limits. The regression
    takes a missing call as the variant's mean. This is GENESIS's ``pcrelate(scale="overall",
    maf.bound.method="filter")``, without k0 and k2.

    X : (n, p) calls or dosages from 0 to 2; anything that :func:`streampca.open` opens.
    pca : a :class:`GenotypePCA` fitted to unrelated samples, ``unrelated="auto"``, or its result.
        It has scores of all samples of X. Samples are found by name, else by their number. Its
        variants may be others: take pruned ones there and all here.
    n_components : how many of its first components hold ancestry; None = all.
    least_frequency : mu below it, or above 1 - it, is left out.
    small_sample_correction : undo what the regression itself does to kinship. It lowers that of
        unrelated pairs of n fitted samples by 1 / 2n on average, inbreeding by (k + 1) / n, and
        that of relatives by more. The effect follows from the components and the relatives that
        are found. GENESIS's option of that name estimates it by a regression on products of
        components instead. False: the plain ratio.
    maf, max_missing, keep, exclude, dim, missing_value : as :class:`GenotypePCA`.
    variants : a :class:`VariantFilter`; by default the autosomes and XY.

    Cost: one pass, float64; 2.5 n^2 p flops; 24 n^2 bytes for the sums of each lane. The same bits
    for any number of threads and workers.
    Raises InvalidInputError for samples that the model does not have; MemoryLimitError with the
    smallest limit that would do.
    Source: Conomos, Reiner, Weir and Thornton 2016, "Model-free estimation of recent genetic
    relatedness", American Journal of Human Genetics 98:127.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> rng = np.random.default_rng(0)
    >>> frequency = np.linspace(0.3, 0.7, 9000) + 0.2 * np.sign(np.arange(40) - 19.5)[:, None]
    >>> calls = rng.binomial(2, frequency).astype("int8")  # two populations
    >>> calls[39] = calls[0]  # a duplicate
    >>> model = streampca.GenotypePCA(1, unrelated="auto").fit(calls)
    >>> adjusted = streampca.pc_relate(calls, model)
    >>> adjusted.kinship.shape, adjusted.related("first").columns()["IID1"].tolist()
    ((40, 40), ['40'])
    """
    if not 0.0 <= least_frequency < 0.5:
        raise InvalidInputError(
            f"least_frequency={least_frequency!r}; expected a frequency in [0, 0.5)"
        )
    settings = PairSettings(
        maf=maf, max_missing=max_missing, variants=variants, keep=keep, exclude=exclude
    )
    result = _result_of(pca)
    done = sum_over_pairs(
        X,
        settings,
        partial(_planned, result, n_components, least_frequency),
        METHOD,
        dim=dim,
        missing_value=missing_value,
        running=Running(memory_limit, scheduler, progress),
    )
    sums: AdjustedSums = done.sums[ADJUSTED]
    if not sums.n_variants:
        raise none_left(settings, done.n_read)
    predictor, basis = ancestry_regression(result, done.described["samples"], n_components)
    nsnp, phi = sums.nsnp(), sums.ratio()
    if small_sample_correction:
        with single_threaded_blas():
            undo_regression(phi, predictor, basis)
    own = {
        "n_components": basis.shape[1] - 1,
        "least_frequency": least_frequency,
        "small_sample_correction": small_sample_correction,
    }
    described = done.described | {"settings": own | done.described["settings"]}
    return AdjustedKinship(phi=phi, nsnp=nsnp, n_variants=sums.n_variants, **described)


def _planned(
    result: PrincipalComponents,
    n_components: int | None,
    least_frequency: float,
    matrix: ChunkedMatrix,
    wanted: Standardize,
    memory_limit: int | str | None,
) -> Planned[PassResult]:
    """The pass, planned. Raises MemoryLimitError, and what :func:`ancestry_regression` raises."""
    n, p = matrix.shape
    predictor, basis = ancestry_regression(result, matrix.labels.samples, n_components)
    sums = AdjustedSums(wanted=wanted, least_frequency=least_frequency)
    spec = pass_spec(
        ADJUSTED,
        matrix,
        1,
        {ADJUSTED: sums},
        True,
        flops=2.5 * n * n * p,
        kept_nbytes=predictor.nbytes + basis.nbytes,
    )
    solve = partial(with_arrays, arrays={"operands": {"predictor": predictor, "basis": basis}})
    reason = "one pass over features; products of residuals and of deviations, float64"
    held = {"sums of pairs": spec.total_nbytes}
    candidate = Candidate("pc-relate", reason, (spec,), held, solve=solve)
    return choose(matrix, "adjusted kinship", [candidate], memory_limit)


def ancestry_regression(
    result: PrincipalComponents, samples: AxisLabels, n_components: int | None
) -> tuple[Array, Array]:
    """(predictor, basis), (n, k + 1) each: basis @ (predictor.T @ calls) are the fitted values.

    The columns of the basis are orthonormal over the samples of the fit, where they span the
    components and a constant; the predictor is the basis there, and 0 for the other samples.
    """
    known = result.n_components
    k = known if n_components is None else n_components
    if isinstance(k, bool) or k != int(k) or not 0 <= k <= known:
        raise InvalidInputError(f"n_components={n_components!r}; the model has {known}")
    if result.scores is None:
        raise InvalidInputError(
            "the model holds no scores of its samples; pc_relate needs a GenotypePCA, which does"
        )
    at = _places(result.labels.samples, samples)
    scores = np.asarray(result.scores, np.float64)[at, : min(int(k), result.rank)]
    fitted = np.ones(len(at), bool) if result.fitted is None else result.fitted[at]
    columns = np.hstack([np.ones((len(at), 1)), scores])
    if np.count_nonzero(fitted) <= columns.shape[1]:
        raise InvalidInputError(
            f"{np.count_nonzero(fitted)} samples of the fit are in the data, too few to predict "
            f"frequencies from {columns.shape[1] - 1} components; expected more, or a smaller "
            "n_components="
        )
    with single_threaded_blas():
        upper: Array = np.linalg.qr(columns[fitted])[1]
        basis = np.ascontiguousarray(np.linalg.solve(upper.T, columns.T).T)
    return np.where(fitted[:, None], basis, 0.0), basis


def _places(known: AxisLabels, samples: AxisLabels) -> Array:
    """Numbers of the samples in the model. Raises InvalidInputError."""
    if not (known.named and samples.named):
        if len(known) != len(samples):
            raise InvalidInputError(
                f"a model of {len(known)} samples and data of {len(samples)}; samples without "
                "names must be the same"
            )
        return np.arange(len(samples))
    place = {name: i for i, name in enumerate(known.names())}
    at = np.array([place.get(name, -1) for name in samples.names()])
    if (at < 0).any():
        strange = samples.name(int(np.argmax(at < 0)))
        raise InvalidInputError(
            f"{np.count_nonzero(at < 0)} of {len(samples)} samples have no scores in the model, "
            f"such as {strange}; leave them out (exclude=), or fit a model that scores them"
        )
    return at


def _result_of(pca: Any) -> PrincipalComponents:
    """The result of a fitted model, or a result itself. Raises InvalidTypeError, NotFittedError."""
    result = getattr(pca, "result_", pca)
    if isinstance(result, PrincipalComponents):
        return result
    if result is pca and hasattr(pca, "fit"):
        raise not_fitted(type(pca).__name__)
    raise InvalidTypeError(f"got {type(result).__name__}; expected a fitted GenotypePCA")
