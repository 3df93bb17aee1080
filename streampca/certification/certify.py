"""Whether components that anyone computed are those of a matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.certification.bounds import (
    Pairs,
    basis_of,
    judge,
    remainder_of_all,
    remainder_of_probes,
    rounding_of,
)
from streampca.certification.claims import KINDS, Claim, arranged, claim_of, half_units, of_shape
from streampca.certification.conventions import AUTO, Convention, conventions
from streampca.certification.reading import Images, Reader
from streampca.certification.report import (
    CHANCE,
    SOLVED,
    TOL,
    Certification,
    explained_residuals,
    verdicts,
)
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError
from streampca.genetics.filters import VariantFilter, filter_genotypes
from streampca.kernels import Array
from streampca.matrix import ALLELE_SCALES, ChunkedMatrix
from streampca.models.contract.request import feature_weights, sample_weights, seed_of, whole_number
from streampca.models.side_data import feature_names
from streampca.passes import Running, easier_axis, single_threaded_blas
from streampca.sources import as_matrix, counted
from streampca.sources.genotypes.allele_counts import with_missing_calls

MISSING = (AUTO, "mean", "pairwise", "raise")
WHOLE = 512  # columns, or rows, up to which the whole scatter is made
EVERY = VariantFilter()  # the variants that PLINK 2 takes
PAIRWISE = "over the cells that two samples both have"
ALIKE = 1.02  # a later convention has to fit so much better
TINY = 1e-300
NOT_CENTRED = (
    "These are singular vectors of X as it is, not of the centred matrix, whose components PCA's "
    "are. If that is meant: center=False."
)


def certify(
    components: Any,
    X: Any,
    *,
    kind: str | None = None,
    center: bool | str = AUTO,
    scale: str | None = AUTO,
    weights: Any = None,
    sample_weight: Any = None,
    missing: str = AUTO,
    variants: VariantFilter = EVERY,
    tol: float = TOL,
    n_probes: int = 24,
    passes: int = 1,
    random_state: Any = 0,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> Certification:
    """How near components are to the true ones of X, whoever computed them.

    Every bound is proved from products of X with the components, in float64 by code of its own.
    Signs and lengths of components do not matter.

    components : loadings (k, p) or scores (n, k); a fitted model (streampca, scikit-learn,
        dask-ml, xeofs); AnnData, by obsm["X_pca"] and varm["PCs"]; or the path of an ``.eigenvec``
        of PLINK 2 or an ``.evec`` of smartpca, whose samples are found by their ids. A model
        brings its weights of features, divisor and names. Where both sides have names (data
        frames, AnnData, models of these) samples and features go by them, in any order: X may
        have more samples than were fitted, and has to have the same features.
    X : (n, p), anything that :func:`streampca.open` opens.
    kind : of an array, "loadings" or "scores", where its shape could be that of both.
    center, scale : how X was prepared: scale None, "std", "hwe" (``plink2 --pca``) or "eigensoft"
        (smartpca). "auto": as the model says, or what fits the components best; that they are
        singular vectors of a matrix that is not centred has to be stated.
    weights, sample_weight, dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`.
    missing : "mean" (a missing cell holds the mean of its column), "raise", or, of scores of
        genotypes, "pairwise" (products of two samples over the calls that both have, as
        ``plink2 --pca`` without "meanimpute"; a second read). "auto": what fits.
    variants : of labelled genotypes; by default the autosomes and XY, as PLINK 2.
    tol : radians within which a component is accepted although its digits do not explain its error.
    n_probes : random vectors by which missed directions are bounded, where X is not small.
    passes : times that these are multiplied by X. Each further one takes a read, or two, and
        brings the bound nearer to the largest variance that was missed.

    Cost: one read, where scores come with streamed features (genotypes) or loadings with streamed
    samples (tables); else two, and one more where samples are streamed and their features are
    scaled or have missing cells. 4 n p (k + n_probes) flops for one convention, about half as
    many again for each one that is left open. Memory: 8 arrays
    of (d, k + n_probes) for d = n (scores) or p (loadings).
    Raises InvalidInputError, InvalidTypeError, SourceError, NonFiniteError, MemoryLimitError.
    Source: Parlett 1998, "The Symmetric Eigenvalue Problem", sections 4.5, 10.1 and 11.7; Davis and
    Kahan 1970, SIAM J. Numer. Anal. 7:1, section 2.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> X = np.random.default_rng(0).normal(size=(200, 6)) * [6, 5, 4, 3, 2, 1]
    >>> _, _, components = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    >>> found = streampca.certify(components[:2], X)
    >>> found.certified, bool(found.angle_bound.max() < 1e-10)
    (True, True)
    >>> streampca.certify(components[[1, 0]], X).words[0]
    'out of order: it is component 2'
    """
    if kind is not None and kind not in KINDS:
        raise InvalidInputError(f"kind={kind!r}; expected one of {KINDS} or None")
    if missing not in MISSING:
        raise InvalidInputError(f"missing={missing!r}; expected one of {MISSING}")
    n_probes, passes = whole_number("n_probes", n_probes, 0), whole_number("passes", passes)
    if not (isinstance(tol, (int, float, np.number)) and tol >= 0.0):
        raise InvalidInputError(f"tol={tol!r}; expected radians, such as 0.01")
    found = claim_of(components)
    features = getattr(found, "features", None)  # of an array nothing is known
    X = X if features is None else feature_names.arranged(X, features)
    dims = getattr(found, "dims", ())
    if dim is None and feature_names.is_xarray(X) and dims and set(dims) <= set(X.dims):
        dim = dims
    if missing_value is None:
        missing_value = getattr(components, "missing_value", None)
    matrix = as_matrix(counted(X), dim=dim, missing_value=missing_value)
    if scale in ALLELE_SCALES or hasattr(components, "ploidy"):
        matrix = with_missing_calls(matrix)
    if "chromosome" in matrix.labels.features.extra:
        keep, exclude = (getattr(components, name, None) for name in ("keep", "exclude"))
        used = getattr(components, "variants", variants)
        opened, matrix = matrix, filter_genotypes(matrix, used, keep, exclude)
        if features is not None and len(features) != matrix.shape[1]:  # a saved model has no filter
            used = VariantFilter(chromosomes="all", extract=features.names())
            matrix = filter_genotypes(opened, used, keep, exclude)
    claim, matrix = arranged(of_shape(found, matrix.shape, kind), matrix)
    if (features := claim.features) is not None and len(features) == matrix.shape[1]:
        matrix = matrix.arranged(features)
        feature_names.check_column_names(X, features)
        feature_names.check_same_features(matrix.labels.features, features)
    claim = replace(
        claim,
        center=claim.center if center == AUTO else center,
        scale=claim.scale if scale == AUTO else scale,
    )
    reader = _reader(
        matrix, claim, weights, sample_weight, Running(memory_limit, scheduler, progress)
    )
    work = _Work(reader, claim, n_probes, passes, seed_of(random_state))
    with single_threaded_blas():
        return work.certified(missing, tol)


def _reader(
    matrix: ChunkedMatrix, claim: Claim, weights: Any, sample_weight: Any, running: Running
) -> Reader:
    """What reads the matrix. Raises InvalidInputError for components of another shape."""
    n, p = matrix.shape
    for name, values, length in (("loadings", claim.loadings, p), ("scores", claim.scores, n)):
        if values is not None and len(values) != length:
            one = "features" if name == "loadings" else "samples"
            raise InvalidInputError(
                f"{name} of {len(values)} {one}, and X has {length} of them after filters"
            )
    roots = np.ones(n)
    if (counts := sample_weights(sample_weight, matrix)) is not None:
        roots = np.sqrt(np.asarray(counts, float))
    if claim.weight and not np.isclose(total := float(roots @ roots), claim.weight, rtol=1e-9):
        raise InvalidInputError(
            f"the rows of the fit had a total weight of {claim.weight:g}, and those of X have "
            f"{total:g}; give sample_weight=, as to the fit"
        )
    factors = np.ones(p) if claim.factors is None else np.asarray(claim.factors, float)
    if (given := feature_weights(weights, matrix)) is not None:
        if claim.weighted:
            raise InvalidInputError("the model has weights of its own; leave out weights=")
        factors = factors * given
    return Reader(matrix, roots, factors, running)


@dataclass(frozen=True)
class _Tried:
    """A convention, in words, and how badly it fits."""

    image: Images
    words: str
    fit: float


class _Work:
    """One certification, from products to words.

    axis : streamed.  space : 0 to certify scores, 1 loadings.  vectors : (d, k) of length 1.
    halves : (d, k) by how much they may be rounded.  basis : (d, r) of their span.
    whole : S is made whole, as it is small.  probes : (d, m) that are multiplied, too.
    """

    def __init__(self, reader: Reader, claim: Claim, n_probes: int, passes: int, seed: int) -> None:
        self.reader, self.claim = reader, claim
        self.n_probes, self.passes, self.seed = n_probes, passes, seed
        self.axis, self.space = _way(reader.matrix, claim)
        given = claim.loadings if self.space else claim.scores
        assert given is not None
        halves, given = half_units(given), given.astype(np.float64)
        if self.space == 0:
            given, halves = given * reader.roots[:, None], halves * reader.roots[:, None]
        lengths = np.linalg.norm(given, axis=0)
        if not lengths.all():
            raise InvalidInputError("a component is 0 everywhere; expected directions")
        self.vectors, self.halves = given / lengths, halves / lengths
        self.basis, self.distinct = basis_of(self.vectors)
        self._choose_probes()

    def _choose_probes(self) -> None:
        d = len(self.vectors)
        self.whole = d <= WHOLE and self.axis != self.space
        normal = np.random.default_rng(self.seed).standard_normal
        self.probes = np.eye(d) if self.whole else normal((d, min(self.n_probes, d)))

    @property
    def _multiplied(self) -> Array:
        return self.probes if self.whole else np.hstack([self.basis, self.probes])

    def certified(self, missing: str, tol: float) -> Certification:
        """The result.  missing : how missing cells were treated."""
        matrix, claim = self.reader.matrix, self.claim
        small = matrix.dtype.kind in "iu" and matrix.dtype.itemsize == 1
        calls = small or "counted_allele" in matrix.labels.features.extra
        made = self._read(conventions(claim.center, claim.scale, calls))
        self._check_missing(missing)
        tried = [self._tried(one, str(one.convention)) for one in made]
        best = tried[0]
        for one in tried[1:]:
            best = one if one.fit * ALIKE < best.fit else best
        unexplained = missing == AUTO and best.fit > SOLVED
        if self._may_be_pairwise(calls) and (unexplained or missing == "pairwise"):
            image = self._pairwise(best.image.convention)
            tried.append(other := self._tried(image, f"{best.words}, {PAIRWISE}"))
            best = other if missing == "pairwise" or other.fit * ALIKE < best.fit else best
        stated = best.image.convention.center or claim.center is not AUTO
        remark = "" if stated else NOT_CENTRED
        if not best.image.total > 0.0:
            remark = f"X, {best.words}, has no variance: no direction is a component."
        return self._reported(best, tried, tol, remark)

    def _tried(self, image: Images, words: str) -> _Tried:
        """How badly a convention fits: the geometric mean of residual / value; what the digits
        explain counts as nothing."""
        pairs = self._judged(image, 1, proofs=False)
        residual = np.maximum(pairs.residual, explained_residuals(pairs, self.halves))
        relative = np.maximum(residual, TINY) / np.maximum(pairs.value, max(pairs.floor, TINY))
        return _Tried(image, words, float(np.exp(np.mean(np.log(relative)))))

    def _read(self, stated: tuple[Convention, ...]) -> list[Images]:
        """S times the basis and the probes, or S itself; along the other axis where this one takes
        too much memory."""
        try:
            return self.reader.images(self._multiplied, self.space, self.axis, stated)
        except MemoryLimitError:
            if self.axis == self.space:
                raise
            self.axis = self.space
            self._choose_probes()
            return self.reader.images(self._multiplied, self.space, self.axis, stated)

    def _check_missing(self, missing: str) -> None:
        if missing == "raise" and self.reader.holes:
            raise NonFiniteError(
                f"{self.reader.holes} cells of X are missing; missing='mean' lets them hold the "
                "mean of their column"
            )
        if missing == "pairwise" and self.reader.holes and (self.space, self.axis) != (0, 1):
            raise InvalidInputError(
                "missing='pairwise' is of scores, of a source whose features are streamed"
            )

    def _may_be_pairwise(self, calls: bool) -> bool:
        return calls and self.reader.holes > 0 and (self.space, self.axis) == (0, 1)

    def _pairwise(self, one: Convention) -> Images:
        """S T over the cells that two samples have, and how far that may be off."""
        found = self.reader.pairwise(self._multiplied, one)
        n, p = self.reader.matrix.shape
        many = n if self.whole else max(self.probes.shape[1], 1)
        size = float(np.linalg.norm(found.images[:, -many:])) / np.sqrt(1 if self.whole else many)
        apart = self.reader.holes / (n * p) / np.sqrt(p)  # of shares that two samples have
        return replace(found, error=CHANCE * apart * size / np.sqrt(n))

    def _judged(self, one: Images, passes: int, proofs: bool = True) -> Pairs:
        r = self.basis.shape[1]
        floor = rounding_of(one.total, max(self.reader.matrix.shape)) + one.error

        def multiply(vectors: Array) -> Array:
            (made,) = self.reader.images(vectors, self.space, self.axis, (one.convention,))
            return made.images

        if self.whole:
            image = one.images @ self.basis
            rest = remainder_of_all(self.basis, one.images, floor)
        else:
            image, probed = one.images[:, :r], one.images[:, r:]
            rest = remainder_of_probes(
                self.basis, image, self.probes, probed, one.total, floor, passes, multiply
            )
        pairs = judge(self.vectors, self.basis, image, rest, one.total, floor, proofs)
        return replace(pairs, distinct=self.distinct)

    def _reported(
        self, best: _Tried, tried: list[_Tried], tol: float, remark: str
    ) -> Certification:
        one, pairs = best.image, self._judged(best.image, self.passes)
        labels = self.reader.matrix.labels.axis(self.space)
        of = ("scores", "loadings")[self.space]
        judged = verdicts(pairs, self.vectors, self.halves, tol, labels.name, of[:-1])
        weight = float(self.reader.roots @ self.reader.roots)
        ddof = one.convention.center if self.claim.ddof is None else self.claim.ddof
        divisor = max(weight - ddof, 1.0)
        return Certification(
            of=of,
            convention=best.words,
            fits={other.words: other.fit for other in tried},
            variance=pairs.value / divisor,
            variance_ratio=pairs.value / (one.total or 1.0),
            variance_bound=pairs.value_bound / divisor,
            residual=pairs.residual / divisor,
            angle_bound=pairs.angle_bound,
            number=pairs.number,
            sure=pairs.sure,
            accepted=judged.accepted,
            words=judged.words,
            total_variance=one.total / divisor,
            beyond=pairs.remainder.largest / divisor,
            beyond_by=pairs.remainder.by,
            overlap=pairs.overlap,
            digits=np.linalg.norm(self.halves, axis=0) / np.sqrt(3.0),
            missing=self.reader.holes,
            remark=remark,
            cost=self.reader.costs,
        )


def _way(matrix: ChunkedMatrix, claim: Claim) -> tuple[int, int]:
    """(streamed axis, 0 to certify scores and 1 loadings): one read where that can be."""
    axis = easier_axis(matrix)
    if claim.loadings is None or claim.scores is None:
        space = 0 if claim.loadings is None else 1
        return easier_axis(matrix, preferred=1 - space), space
    return axis, 1 - axis
