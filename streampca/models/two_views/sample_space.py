"""Two views in sample space: both Gram matrices, n x n, then X' and Y' times what lies between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from streampca.accumulators import CrossProduct
from streampca.kernels import Array, reciprocal
from streampca.matrix import VIEWS, ChunkedMatrix
from streampca.models.contract.request import Request
from streampca.models.decompose.assemble import Fitted, refuse_lost_squares
from streampca.models.decompose.eigenproblem import RowsSink
from streampca.models.decompose.gram import gram_candidates
from streampca.models.decompose.panels import panel_candidates
from streampca.models.results.projection import FeatureLoadings
from streampca.models.two_views.request import (
    Found,
    Samples,
    Solved,
    ViewRequest,
    orientation,
    refuse_still,
)
from streampca.passes import (
    Candidate,
    Pass,
    PassSpec,
    Planned,
    Steps,
    pass_spec,
    single_threaded_blas,
)


@dataclass(frozen=True)
class OneView:
    """A way to one view: its principal components, then its features times vectors of the samples.

    components : of the PCA; its passes are all of this way, weighted, by their names in the plan.
    patterns : the last of these.
    """

    components: Candidate[Fitted]
    patterns: PassSpec

    @classmethod
    def of(
        cls, i: int, view: ChunkedMatrix, request: ViewRequest, inner: Candidate[Fitted]
    ) -> OneView:
        """From a way of a PCA whose answer lies in sample space.  i : the number of the view."""
        other = {"samples of X": 8 * view.shape[0] ** 2} if i else {}
        (axis,) = {spec.axis for spec in inner.passes}
        width = (4 if request.method.shapes else 3) * request.count
        patterns = _pattern_spec(view, axis, width, request.side.basis)
        specs = [replace(one, kept={**one.kept, **other}) for one in inner.passes]
        passes = tuple(
            replace(one, name=f"{VIEWS[i]} {one.name}", matrix=one.matrix or view)
            for one in (*specs, patterns)
        )
        side = request.of_view(i).side
        components = replace(inner, passes=passes).weighted(side.sample_weight, side.weights)
        return cls(components, patterns)

    @property
    def held(self) -> int:
        """Bytes of arrays that live during the passes."""
        return max(one.kept_nbytes for one in self.components.passes)


def sample_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate[Found]]:
    """Ways to the components of X with ways to those of Y, then a pass over each."""
    if request.method.folds or request.side.sample_weight is not None:
        return []
    views = (request.pair.x, request.pair.y)
    ways = [
        [
            [OneView.of(i, view, request, one) for one in way(view, request.of_view(i))]
            for way in (gram_candidates, panel_candidates)
        ]
        for i, view in enumerate(views)
    ]
    n, k = matrix.shape[0], request.count
    solve = {
        "samples of both views": 6 * n * n * 8,
        "scores": 8 * n * k * 8,
        "weights and loadings": 8 * (13 if request.method.shapes else 11) * matrix.shape[1] * k,
    }
    made = []
    for x_ways, y_ways in product(*ways):
        for pair in _pairs(x_ways, y_ways):
            x, y = (one.components for one in pair)
            nbytes = {
                name: max(x.solve_nbytes.get(name, 0), y.solve_nbytes.get(name, 0))
                for name in {**x.solve_nbytes, **y.solve_nbytes}
            }
            reason = f"both in sample space (n x n): {x.solver} of X, {y.solver} of Y, then weights"
            made.append(
                Candidate(
                    "samples",
                    reason,
                    x.passes + y.passes,
                    nbytes | solve,
                    x.solve_flops + y.solve_flops + 20.0 * n**3,
                    solve=partial(by_samples, request=request, ways=pair),
                )
            )
    return made


def _pairs(x_ways: list[OneView], y_ways: list[OneView]) -> list[tuple[OneView, OneView]]:
    """Ways of X and of Y that hold about as much, those of the fewest reads first."""
    found: dict[tuple[int, int], tuple[OneView, OneView]] = {}
    for level in sorted({one.held for one in (*x_ways, *y_ways)}, reverse=True):
        x, y = (
            next((way for way in ways if way.held <= level), ways[-1]) for ways in (x_ways, y_ways)
        )
        found.setdefault((id(x), id(y)), (x, y))
    return list(found.values())


def _pattern_spec(view: ChunkedMatrix, axis: int, width: int, basis: Array | None) -> PassSpec:
    """The pass that multiplies a view by (n, width) vectors of the samples."""
    n, p = view.shape
    flops = 2.0 * n * p * width
    kept = 8 * width * (n + 2 * p)
    if axis == 1:
        return PassSpec(
            "patterns",
            1,
            scratch=lambda length: width * (n + 2 * length) * 8,
            kept_nbytes=kept,
            flops=flops,
            matrix=view if basis is None else view.without(basis),
        )
    cross = CrossProduct(y="u", center="center", width=width)
    return pass_spec("patterns", view, 0, {"v": cross}, flops=flops, kept_nbytes=kept)


def by_samples(
    planned: Planned[Any], *, request: ViewRequest, ways: tuple[OneView, OneView]
) -> Steps[Found]:
    """Eigenvectors of both Gram matrices, what lies between them, then X' and Y' times those."""
    n = planned.matrix.shape[0]
    fitted, samples = [], []
    for way in ways:
        one = yield from way.components.solve(planned)
        refuse_lost_squares(one)
        fitted.append(one)
        r = max(min(one.rank, len(one.spectrum.values)), 1)
        error = float(one.certificate.floor) * (n - 1.0)
        vectors = np.array(one.spectrum.vectors[:, :r])
        samples.append(Samples(vectors, np.sqrt(one.spectrum.values[:r]), error))
        one.scores, one.spectrum = None, one.spectrum.head(0)  # n x n
    varies = [one.features.feature_variance > 0.0 for one in fitted]
    for one, part in zip(fitted, varies, strict=True):
        part[one.features.constant] = False
    refuse_still(np.concatenate(varies), request.p)
    with single_threaded_blas():
        solved = request.method.of_samples(samples[0], samples[1], n - 1.0)
        inner = [
            (sample.u @ (turn * reciprocal(sample.s)[:, None]), (sample.u * sample.s) @ turn)
            for sample, turn in zip(samples, (solved.x, solved.y), strict=True)
        ]
        shapes: list[tuple[Array, ...]] = [(), ()]
        if solved.patterns is not None:
            shapes = [
                (sample.u @ (turn * reciprocal(sample.s)[:, None]),)
                for sample, turn in zip(samples, solved.patterns, strict=True)
            ]
    samples.clear()  # n x n
    (to_x, a), (to_y, b) = inner
    products = []
    for i, columns in enumerate(((to_x, a, b, *shapes[0]), (to_y, b, a, *shapes[1]))):
        of_view = request.of_view(i)
        made = yield from _patterns(ways[i].patterns, of_view, fitted[i], np.hstack(columns))
        products.append(made)
    return _of_products(request, fitted, solved, products, (a, b), n)


def _patterns(spec: PassSpec, request: Request, fitted: Fitted, columns: Array) -> Steps[Array]:
    """(features, width) Z' times columns (n, width), Z the standardised view."""
    width = columns.shape[1]
    if (basis := request.side.basis) is not None:
        columns = columns - basis @ (basis.T @ columns)  # so that no residuals are needed
    if spec.axis == 1:
        products = np.empty((len(fitted.features.mean), width))
        yield Pass(
            spec,
            operands={"u": columns, "s": np.ones(width)},
            maps={"patterns": FeatureLoadings(request.standardize)},
            sinks={"patterns": RowsSink(products, 0)},
        )
        return products
    changed: dict[str, Any] = {"width": width}
    operands = {"center": fitted.features.mean}
    if fitted.features.divisors is not None:
        operands["scale"], changed["scale"] = fitted.features.divisors, "scale"
    sides = {"u": columns}
    done = yield Pass(spec, changed={"v": changed}, operands=operands, side_inputs=sides)
    found: Array = done.accumulators.pop("v").cross_product()
    return found


def _of_products(
    request: ViewRequest,
    fitted: list[Fitted],
    solved: Solved,
    products: list[Array],
    scores: tuple[Array, Array],
    n: int,
) -> Found:
    """Weights and loadings from Z' times weights and scores."""
    k, parts = solved.x.shape[1], []
    lengths = [np.linalg.norm(score, axis=0) for score in scores]
    for i, (one, made) in enumerate(zip(fitted, products, strict=True)):
        deviations = np.sqrt(one.features.feature_variance * (n - 1.0))
        if one.features.divisors is not None:
            deviations = deviations * reciprocal(one.features.divisors)
        own, other = lengths[i], lengths[1 - i]
        with np.errstate(divide="ignore", invalid="ignore"):
            loadings = made[:, k : 2 * k] / deviations[:, None] / own
            cross = made[:, 2 * k : 3 * k] / deviations[:, None] / other
        correlations = [np.clip(loadings, -1.0, 1.0), np.clip(cross, -1.0, 1.0)]
        parts.append([made[:, :k], *correlations, made[:, k : 2 * k], made[:, 3 * k :]])
    sign = orientation(parts[0][1])
    *tables, shapes = (np.vstack(pair) for pair in zip(*parts, strict=True))
    parts.clear()
    factor = np.sqrt(n - 1.0) if request.method.weighs else 1.0
    for table in tables:  # in place: they are as long as the data are wide
        table *= sign
    vectors, loadings, cross, covariances = tables
    vectors *= factor
    covariances *= factor / (n - 1.0)
    x_scores, y_scores = (score * sign * factor for score in scores)
    scales = [one.features.divisors for one in fitted]
    scale = None
    if any(one is not None for one in scales):
        widths = [len(one.features.mean) for one in fitted]
        known = zip(scales, widths, strict=True)
        scale = np.concatenate([np.ones(w) if s is None else s for s, w in known])
    absent = [fitted[0].features.dropped, fitted[1].features.dropped + request.p]
    slopes = [one.features.removed for one in fitted if one.features.removed is not None]
    return Found(
        solved=solved,
        vectors=vectors,
        loadings=loadings,
        cross_loadings=cross,
        covariances=covariances,
        between_scores=(x_scores.T @ x_scores / (n - 1.0), y_scores.T @ y_scores / (n - 1.0)),
        patterns=shapes * sign / factor if shapes.shape[1] else None,
        mean=np.concatenate([one.features.mean for one in fitted]),
        scale=scale,
        absent=np.concatenate(absent).astype(np.int64),
        removed=np.hstack(slopes) if slopes else None,
        scores=(x_scores, y_scores),
    )
