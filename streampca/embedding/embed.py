"""Filter, components, layout: a picture of the rows of a matrix larger than memory."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from streampca.embedding.filters import Filter, Filtered, at_most, filtered, parse_filters
from streampca.embedding.layouts import Layout, layout_of
from streampca.embedding.plan import (
    EmbeddingPlan,
    beside_nbytes,
    kept_terms,
    landmarks_wanted,
    placed_at_once,
)
from streampca.embedding.quality import Quality, quality
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.kernels import Array
from streampca.matrix import AxisLabels, ChunkedMatrix, select
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.request import seed_of, whole_number
from streampca.models.pca.pca import PCA
from streampca.passes import single_threaded_blas
from streampca.passes.execution import Advance, Progress, resolve
from streampca.passes.memory import parse_nbytes
from streampca.sources import as_matrix, counted
from streampca.store.sinks import copy_rows

COMPONENTS = 50
FEWEST = 3  # rows, of which neighbours can be judged
WARNINGS = (
    "The axes have no meaning.",
    "The sizes of clusters have no meaning.",
    "Distances between clusters have no meaning.",
)


@dataclass(frozen=True, repr=False)
class Embedding:
    """A picture of rows: what :func:`embed` returns.

    coordinates : (n, 2) float32.  scores : (n, k) float32 on the components that were laid out.
    landmarks : (m,) numbers of the rows that were laid out; the others were placed among them.
    model : the fitted components.  layout : the fitted object of the library.
    filtered : what the filters left.  quality : what the picture keeps of the neighbourhoods.
    plan : what was planned.  method : of the layout, with its settings.
    samples : labels of the rows.  seconds : by stage.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA, embed
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> picture = embed(X, n_components=4, method=PCA(2))
    >>> picture.coordinates.shape, picture.transform(X[:5]).shape
    ((60, 2), (5, 2))
    """

    coordinates: Array
    scores: Array
    landmarks: Array
    model: Any
    layout: Any
    filtered: Filtered
    quality: Quality
    plan: EmbeddingPlan
    method: str
    seed: int
    samples: AxisLabels
    seconds: Mapping[str, float] = field(default_factory=dict)
    picture: ClassVar[str] = "embedding"  # of ``streampca.plots``

    def transform(self, X: Any, *, dim: Any = None) -> Array:
        """The places of other rows in the picture, (m, 2) float32, by the library's transform.

        X : (m, p) with all features of the source, or those that the filters left. One pass.
        """
        scores = self.model.transform(as_matrix(counted(X), dim=dim))
        return _placed(self.layout, _scores(scores), self.plan.at_once)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the coordinates as an (n, 2) Zarr array."""
        copy_rows(self.coordinates, os.fspath(path), overwrite)
        return Path(path)

    @property
    def share(self) -> float:
        """Of the variance, what the components hold; NaN where the model does not say."""
        shares = getattr(self.model, "explained_variance_ratio_", None)
        return float("nan") if shares is None else float(np.sum(shares))

    def __repr__(self) -> str:
        (n, k), m = self.scores.shape, len(self.landmarks)
        held = "" if np.isnan(self.share) else f" with {self.share:.1%} of their variance"
        rest = f", {n - m:,} placed among {m:,} landmarks" if m < n else ""
        return "\n".join(
            [
                f"features   {self.filtered}",
                f"components {k}{held}, {type(self.model).__name__}",
                f"layout     {self.method} of {n:,} rows{rest}, seed {self.seed}",
                f"kept       {self.quality}",
                "seconds    " + ", ".join(f"{x} {s:.1f}" for x, s in self.seconds.items()),
                *(f"           {warning}" for warning in WARNINGS),
            ]
        )


def embed(
    X: Any,
    *,
    filter: str | Sequence[str] | None = None,
    n_components: int | None = None,
    model: Any = None,
    method: Any = "umap",
    n_neighbors: int | None = None,
    min_dist: float | None = None,
    perplexity: float | None = None,
    landmarks: int | None = None,
    n_queries: int = 1000,
    random_state: Any = 0,
    dim: Any = None,
    missing_value: float | None = None,
    memory_limit: int | str | None = None,
    scheduler: Any = None,
    progress: Any = None,
) -> Embedding:
    """Filter features, fit components, and lay the rows out in two dimensions.

    X : (n, p), anything that :func:`streampca.open` opens.
    filter : "variance:2000" or "dispersion:2000" (variance over mean; for scanpy's normalised one
        see ``streampca.preprocess.highly_variable``) take the features with the largest;
        "missing:0.05" those with at most that share of missing cells; for genotypes "maf:0.01" the
        alleles that are no rarer, "ld:0.2" variants of no larger r^2. Several: a list.
    n_components : k, of a PCA (default 50).
    model : an unfitted model of streampca instead: ``GenotypePCA(20)``, ``TruncatedSVD(50)``.
    method : "umap" (umap-learn), "tsne" (openTSNE), "pacmap" (PaCMAP); or an object with
        ``fit_transform(rows)`` and ``transform(rows)``, with settings of its own.
    n_neighbors : "umap" (15) and "pacmap" (10): rows that count as near. Few show detail, many show
        the whole.
    min_dist : "umap" (0.1): how densely points may be packed; changes the look, not the neighbours.
    perplexity : "tsne" (30): about how many rows count as near.
    landmarks : so many rows, drawn by the seed, are laid out, and the others placed among them by
        the library's transform. Default: all rows up to 100,000, or what memory_limit allows.
    n_queries : rows by which the picture is judged.
    random_state : the seed of landmarks, layout and judgement. The same bits for the same seed and
        versions of the libraries: they run on one thread for that.
    dim, missing_value, memory_limit, scheduler, progress : as :class:`PCA`. A limit covers the
        layout too; what its library takes was measured (see ``plan``).

    Cost: one pass for the filters (one more for "ld"), those of the fit, and one for the scores;
    then n k numbers in memory, about 4 kB for each landmark, and the time of the library.
    Raises InvalidInputError, InvalidTypeError, MissingDependencyError, MemoryLimitError, all before
    anything is read where that can be known.
    Source: McInnes, Healy and Melville 2018, arXiv:1802.03426; Policar, Strazar and Zupan 2024,
    J. Stat. Softw. 109(3); Wang, Huang, Rudin and Shaposhnik 2021, JMLR 22:201.

    Examples
    --------
    Any object with ``fit_transform`` and ``transform`` lays rows out, here a PCA:

    >>> import numpy as np
    >>> from streampca import PCA, embed
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> picture = embed(X, filter="variance:5", n_components=4, method=PCA(2))
    >>> print(picture.filtered)
    8 features; variance:5 leaves 5
    """
    wanted = _wanted(
        X,
        filter=filter,
        n_components=n_components,
        model=model,
        method=method,
        n_neighbors=n_neighbors,
        min_dist=min_dist,
        perplexity=perplexity,
        landmarks=landmarks,
        random_state=random_state,
        dim=dim,
        missing_value=missing_value,
        memory_limit=memory_limit,
        scheduler=scheduler,
        progress=progress,
    )
    whole_number("n_queries", n_queries)
    plan, seed, n = wanted.plan(), wanted.seed, wanted.matrix.shape[0]
    clock = _Clock(resolve(progress))
    left = filtered(wanted.matrix, wanted.filters, wanted.ploidy, **wanted.running)
    clock.done("filters")
    fitted = wanted.estimator(left.matrix)
    scores = _scores(fitted.fit_transform(left.matrix))
    clock.done("components")
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(n, plan.landmarks, replace=False))
    picture, library = _laid_out(wanted.layout, scores, chosen, seed, plan.at_once, clock)
    queries = np.sort(rng.choice(n, min(n, int(n_queries)), replace=False))
    judged = quality(scores, picture, queries)
    clock.done("judgement")
    return Embedding(
        picture,
        scores,
        chosen,
        fitted,
        library,
        left,
        judged,
        plan,
        str(wanted.layout),
        seed,
        wanted.matrix.labels.samples,
        clock.seconds,
    )


def plan_embedding(X: Any, **options: Any) -> EmbeddingPlan:
    """What :func:`embed` would do with X, (n, p), and the same options; reads no data.

    Raises what it would raise before it reads.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> from streampca.embedding import plan_embedding
    >>> plan = plan_embedding(np.ones((60, 8)), n_components=4, method=PCA(2))
    >>> plan.landmarks, plan.fit.solver
    (60, 'scatter')
    """
    bound = signature(embed).bind(X, **options)
    bound.apply_defaults()
    del bound.arguments["n_queries"]
    return _wanted(**bound.arguments).plan()


# -- how ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    """An embedding as it was requested.  running : limit, scheduler and progress of passes."""

    matrix: ChunkedMatrix
    filters: tuple[Filter, ...]
    n_components: int | None
    model: Any
    layout: Layout
    landmarks: int | None
    seed: int
    limit: int | None
    running: dict[str, Any] = field(default_factory=dict)

    @property
    def ploidy(self) -> int:
        return int(getattr(self.model, "ploidy", 2))

    def estimator(self, matrix: ChunkedMatrix) -> Any:
        """The unfitted model for a matrix whose features were filtered."""
        if self.model is None:
            k = min(COMPONENTS, *matrix.shape) if self.n_components is None else self.n_components
            return PCA(k, **self.running)
        set_here = {name: value for name, value in self.running.items() if value is not None}
        return type(self.model)(**{**self.model.get_params(deep=False), **set_here})

    def plan(self) -> EmbeddingPlan:
        """Of the most features that the filters can leave. Raises MemoryLimitError."""
        matrix, (n, p) = self.matrix, self.matrix.shape
        features = at_most(self.filters, p)
        first = select(matrix, features=np.arange(features))
        model = self.estimator(first)
        fit = model.plan(first)
        k = model.n_components
        k = int(k) if isinstance(k, (int, np.integer)) else min(first.shape)
        kept, row = kept_terms(matrix, k, self.layout), self.layout.row_nbytes(k)
        m = landmarks_wanted(self.landmarks, kept, n, row, self.layout.needs_rows, self.limit)
        fitting = {"layout library": self.layout.library.loaded_nbytes, "fit": fit.peak_nbytes}
        laying = {**kept, "landmarks": m * row, "placing, comparing": beside_nbytes(kept, n)}
        at_once = placed_at_once(self.layout.placed_nbytes(k, m))
        return EmbeddingPlan(
            (n, p),
            tuple(map(str, self.filters)),
            features,
            fit,
            k,
            str(self.layout),
            m,
            at_once,
            {"fit": fitting, "layout": laying},
            self.limit,
        )


def _wanted(
    X: Any,
    filter: Any,
    n_components: int | None,
    model: Any,
    landmarks: int | None,
    random_state: Any,
    dim: Any,
    missing_value: float | None,
    memory_limit: int | str | None,
    scheduler: Any,
    progress: Any,
    **layout_options: Any,
) -> _Wanted:
    """The request of ``embed`` with these options, checked.  layout_options : for layout_of."""
    if model is not None and n_components is not None:
        raise InvalidInputError("n_components= and model= exclude each other: give k to the model")
    if model is not None and (not isinstance(model, Estimator) or model.views != 1):
        raise InvalidTypeError(f"model={model!r}; expected a model of one matrix: PCA(50)")
    filters, seed = parse_filters(filter), seed_of(random_state)
    layout = layout_of(**layout_options)
    limit = parse_nbytes(memory_limit)
    rest = None if limit is None else max(1, limit - layout.library.loaded_nbytes)
    running = {"memory_limit": rest, "scheduler": scheduler, "progress": progress}
    matrix = as_matrix(counted(X), dim=dim, missing_value=missing_value)
    if matrix.shape[0] < FEWEST:
        raise InvalidInputError(
            f"X has {matrix.shape[0]} rows; a picture needs at least {FEWEST}, of which one can be "
            "nearer than another"
        )
    return _Wanted(matrix, filters, n_components, model, layout, landmarks, seed, limit, running)


def _scores(scores: Any) -> Array:
    """(n, k) contiguous float32. Raises InvalidInputError for rows without scores."""
    found = np.ascontiguousarray(scores, dtype=np.float32)
    empty = int(np.count_nonzero(~np.isfinite(found).all(axis=1)))
    if empty:
        raise InvalidInputError(
            f"{empty} of {len(found)} rows have no scores, since nothing is observed in them; "
            "leave them out: X[rows]"
        )
    return found


@dataclass
class _Clock:
    """Wall seconds of the stages of an embedding; tells the progress of placing rows."""

    progress: Progress | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    begun: float = field(default_factory=time.perf_counter)

    def done(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self.begun = now - self.begun, now

    def placed(self, done: int, parts: int, nbytes: int) -> None:
        if self.progress is not None:
            spent = time.perf_counter() - self.begun
            self.progress(Advance("placing rows", 1, 1, done, parts, nbytes, spent))


def _laid_out(
    layout: Layout, scores: Array, chosen: Array, seed: int, at_once: int, clock: _Clock
) -> tuple[Array, Any]:
    """(coordinates of all rows, the fitted object of the library)."""
    library = layout.make(seed)
    whole = len(chosen) == len(scores)
    with warnings.catch_warnings(), single_threaded_blas():  # the same bits
        warnings.filterwarnings("ignore", "Graph is not fully connected")  # groups stand apart
        first = _two_columns(
            library.fit_transform(scores if whole else scores[chosen]), len(chosen)
        )
    clock.done("layout")
    if whole:
        return first, library
    picture = np.empty((len(scores), 2), np.float32)
    picture[chosen] = first
    others = np.setdiff1d(np.arange(len(scores)), chosen, assume_unique=True)
    picture[others] = _placed(library, scores, at_once, others, clock)
    clock.done("placing")
    return picture, library


def _placed(
    library: Any,
    scores: Array,
    at_once: int,
    numbers: Array | None = None,
    clock: _Clock | None = None,
) -> Array:
    """(m, 2) places of rows, in parts of equal size: libraries treat small ones otherwise."""
    numbers = np.arange(len(scores)) if numbers is None else numbers
    parts = np.array_split(numbers, -(-len(numbers) // at_once))
    places = np.empty((len(numbers), 2), np.float32)
    start = 0
    for i, part in enumerate(parts, 1):
        stop = start + len(part)
        places[start:stop] = _two_columns(library.transform(scores[part]), len(part))
        start = stop
        if clock is not None:
            clock.placed(i, len(parts), 4 * scores.shape[1] * stop)
    return places


def _two_columns(places: Any, n: int) -> Array:
    found = np.asarray(places, dtype=np.float32)
    if found.shape != (n, 2) or not np.isfinite(found).all():
        raise InvalidInputError(
            f"the layout gave {found.shape}, {int(np.count_nonzero(~np.isfinite(found)))} not "
            f"finite; expected ({n}, 2) finite numbers"
        )
    return found
