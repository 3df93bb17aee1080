"""Two views in sample space: both Gram matrices, n x n, then X' and Y' times what lies between."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from streampca.accumulators import CrossProduct
from streampca.kernels import Array, reciprocal
from streampca.matrix import VIEWS, ChunkedMatrix
from streampca.models.assemble import Fitted, refuse_lost_squares
from streampca.models.pca.eigenproblem import RowsSink
from streampca.models.pca.routes import ROUTES as PCA_ROUTES
from streampca.models.projection import FeatureLoadings
from streampca.models.view_routes import (
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
    SolverInput,
    Steps,
    pass_spec,
    single_threaded_blas,
)

IN_SAMPLES = ("gram", "gram by panels")  # the routes of a PCA whose answer lies in sample space


def sample_candidates(matrix: ChunkedMatrix, request: ViewRequest) -> list[Candidate]:
    """Ways to the components of X beside ways to those of Y, then a pass over each."""
    if request.method.folds or request.side.sample_weight is not None:
        return []
    views = (request.pair.x, request.pair.y)
    ways = [
        [_ways(i, view, request, route) for route in IN_SAMPLES] for i, view in enumerate(views)
    ]
    n, k = matrix.shape[0], request.count
    solve = {"samples of both views": 6 * n * n * 8, "scores": 8 * n * k * 8,
             "weights and loadings": 6 * 8 * matrix.shape[1] * k}  # fmt: skip
    made = []
    for x_ways, y_ways in product(*ways):
        for x, y in _pairs(x_ways, y_ways):
            held = {name: max(x.solve_nbytes.get(name, 0), y.solve_nbytes.get(name, 0))
                    for name in {**x.solve_nbytes, **y.solve_nbytes}}  # fmt: skip
            reason = f"both in sample space (n x n): {x.solver} of X, {y.solver} of Y, then weights"
            flops = x.solve_flops + y.solve_flops + 20.0 * n**3
            passes = x.passes + y.passes
            made.append(Candidate("samples", reason, passes, held | solve, flops))
    return made


def _pairs(x_ways: list[Candidate], y_ways: list[Candidate]) -> list[tuple[Candidate, Candidate]]:
    """Ways of X and of Y that hold about as much, those of the fewest reads first."""

    def held(one: Candidate) -> int:
        return max(spec.kept_nbytes for spec in one.passes)

    found: dict[tuple[int, int], tuple[Candidate, Candidate]] = {}
    for level in sorted({held(one) for one in (*x_ways, *y_ways)}, reverse=True):
        pair = [next((one for one in ways if held(one) <= level), ways[-1])
                for ways in (x_ways, y_ways)]  # fmt: skip
        found.setdefault((id(pair[0]), id(pair[1])), (pair[0], pair[1]))
    return list(found.values())


def _ways(i: int, view: ChunkedMatrix, request: ViewRequest, route: str) -> list[Candidate]:
    """The ways of a route of a PCA to the samples of one view, with the pass for its weights."""
    name, found = VIEWS[i], []
    other = {"samples of X": 8 * view.shape[0] ** 2} if i else {}
    for one in PCA_ROUTES[route].route.candidates(view, request.of_view(i)):
        specs = [replace(s, name=f"{name} {s.name}", kept={**s.kept, **other}) for s in one.passes]
        basis = request.side.basis
        specs.append(_pattern_spec(name, view, route, 3 * request.count, basis))
        specs = [replace(s, matrix=s.matrix or view) for s in specs]
        found.append(replace(one, passes=tuple(specs)))
    return found


def _pattern_spec(
    name: str, view: ChunkedMatrix, route: str, width: int, basis: Array | None
) -> PassSpec:
    """The pass that multiplies a view by (n, width) vectors of the samples."""
    n, p = view.shape
    flops = 2.0 * n * p * width
    if route == "gram":
        return PassSpec(
            f"{name} patterns", 1, 0, 0, lambda length: width * (n + 2 * length) * 8,
            kept_nbytes=8 * width * (n + 2 * p), flops=flops,
            matrix=None if basis is None else view.without(basis),
        )  # fmt: skip
    cross = CrossProduct(y="u", center="center", width=width)
    kept = 8 * width * (n + 2 * p)
    return pass_spec(f"{name} patterns", view, 0, {"v": cross}, flops=flops, kept_nbytes=kept)


def by_samples(inputs: SolverInput[ViewRequest]) -> Steps[Found]:
    """Eigenvectors of both Gram matrices, what lies between them, then X' and Y' times those."""
    request, n = inputs.request, inputs.matrix.shape[0]
    views = (request.pair.x, request.pair.y)
    fitted, samples = [], []
    for i in (0, 1):
        one = yield from _components_of(inputs, i, views[i])
        refuse_lost_squares(one, inputs.plan.work_dtype)
        fitted.append(one)
        r = max(min(one.rank, len(one.spectrum.values)), 1)
        error = float(one.certificate.floor) * (n - 1.0)
        vectors = np.array(one.spectrum.vectors[:, :r])
        samples.append(Samples(vectors, np.sqrt(one.spectrum.values[:r]), error))
        one.scores, one.spectrum = None, one.spectrum.head(0)  # n x n
    varies = [one.column_variance > 0.0 for one in fitted]
    for one, part in zip(fitted, varies, strict=True):
        part[one.constant] = False
    refuse_still(np.concatenate(varies), request.p)
    with single_threaded_blas():
        solved = request.method.of_samples(samples[0], samples[1], n - 1.0)
        inner = [
            (one.u @ (turn * reciprocal(one.s)[:, None]), (one.u * one.s) @ turn)
            for one, turn in zip(samples, (solved.x, solved.y), strict=True)
        ]
    samples.clear()  # n x n
    (to_x, a), (to_y, b) = inner
    products = []
    for i, columns in enumerate(((to_x, a, b), (to_y, b, a))):
        made = yield from _patterns(inputs, i, views[i], fitted[i], np.hstack(columns))
        products.append(made)
    return _of_products(request, fitted, solved, products, (a, b), n)


def _components_of(inputs: SolverInput[ViewRequest], i: int, view: ChunkedMatrix) -> Steps[Fitted]:
    """The PCA of one view by one of its own routes, whose passes have the name of the view."""
    prefix, request = f"{VIEWS[i]} ", inputs.request.of_view(i)
    own = tuple(
        replace(one, name=one.name.removeprefix(prefix))
        for one in inputs.plan.passes
        if one.name.startswith(prefix)
    )
    plan = replace(inputs.plan, passes=own)
    route = IN_SAMPLES[0] if own[0].axis == 1 else IN_SAMPLES[1]
    steps, result = PCA_ROUTES[route].route.solve(SolverInput(plan, view, request)), None
    while True:
        try:
            wanted = next(steps) if result is None else steps.send(result)
        except StopIteration as done:
            fitted: Fitted = done.value
            return fitted
        sides = dict(wanted.side_inputs)
        if plan.named(wanted.name).axis == 1 and (weights := request.side.weights) is not None:
            sides["feature_weights"] = weights
        matrix = view if wanted.matrix is None else wanted.matrix
        result = yield replace(
            wanted, name=f"{prefix}{wanted.name}", matrix=matrix, side_inputs=sides
        )


def _patterns(
    inputs: SolverInput[ViewRequest], i: int, view: ChunkedMatrix, fitted: Fitted, columns: Array
) -> Steps[Array]:
    """(features, width) Z' times columns (n, width), Z the standardised view."""
    request, name = inputs.request.of_view(i), f"{VIEWS[i]} patterns"
    width = columns.shape[1]
    if (basis := request.side.basis) is not None:
        columns = columns - basis @ (basis.T @ columns)  # so that residuals need not be made
    if inputs.plan.named(name).axis == 1:
        products = np.empty((view.shape[1], width))
        weights = request.side.weights
        yield Pass(
            name, matrix=view if basis is None else view.without(basis),
            operands={"u": columns, "s": np.ones(width)},
            maps={"patterns": FeatureLoadings(request.standardize)},
            sinks={"patterns": RowsSink(products, 0)},
            side_inputs={} if weights is None else {"feature_weights": weights},
        )  # fmt: skip
        return products
    changed: dict[str, Any] = {"width": width}
    operands = {"center": fitted.mean}
    if fitted.scale is not None:
        operands["scale"], changed["scale"] = fitted.scale, "scale"
    done = yield Pass(name, matrix=view, changed={"v": changed}, operands=operands,
                      side_inputs={"u": columns})  # fmt: skip
    found: Array = done.accumulators.pop("v").cross_product()
    return found


def _of_products(
    request: ViewRequest, fitted: list[Fitted], solved: Solved, products: list[Array],
    scores: tuple[Array, Array], n: int,
) -> Found:  # fmt: skip
    """Weights and loadings from Z' times weights and scores."""
    k, parts = solved.x.shape[1], []
    lengths = [np.linalg.norm(one, axis=0) for one in scores]
    for i, (one, made) in enumerate(zip(fitted, products, strict=True)):
        deviations = np.sqrt(one.column_variance * (n - 1.0))
        if one.scale is not None:
            deviations = deviations * reciprocal(one.scale)
        own, other = lengths[i], lengths[1 - i]
        with np.errstate(divide="ignore", invalid="ignore"):
            loadings = made[:, k : 2 * k] / deviations[:, None] / own
            cross = made[:, 2 * k :] / deviations[:, None] / other
        parts.append([made[:, :k], np.clip(loadings, -1.0, 1.0), np.clip(cross, -1.0, 1.0)])
    sign = orientation(parts[0][1])
    vectors, loadings, cross = (np.vstack(pair) * sign for pair in zip(*parts, strict=True))
    factor = np.sqrt(n - 1.0) if request.method.weighs else 1.0
    scales = [one.scale for one in fitted]
    scale = None
    if any(one is not None for one in scales):
        widths = [len(one.mean) for one in fitted]
        known = zip(scales, widths, strict=True)
        scale = np.concatenate([np.ones(w) if s is None else s for s, w in known])
    absent = [fitted[0].dropped, fitted[1].dropped + request.p]
    slopes = [one.removed for one in fitted if one.removed is not None]
    return Found(
        solved=solved,
        vectors=vectors * factor,
        loadings=loadings,
        cross_loadings=cross,
        mean=np.concatenate([one.mean for one in fitted]),
        scale=scale,
        absent=np.concatenate(absent).astype(np.int64),
        removed=np.hstack(slopes) if slopes else None,
        scores=(scores[0] * sign * factor, scores[1] * sign * factor),
    )
