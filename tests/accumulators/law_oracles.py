"""What is read from each accumulator, and what NumPy says of the same data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from law_data import Data, Values
from scipy.stats import multivariate_normal

from streampca.accumulators import (
    AlternatingStep,
    CrossMoments,
    FeatureDistances,
    FeaturePosterior,
    FeatureProjection,
    FilledStep,
    Gram,
    LatentEquations,
    LeadingDirections,
    MeanImputedScatter,
    Moments,
    RFactor,
    RowInformation,
    SubspaceStep,
    TruncatedFactor,
    TwoWayStep,
)
from streampca.kernels import probe
from streampca.matrix import Standardize


def read_moments(a: Moments) -> dict[str, Any]:
    columns = dataclasses.asdict(a.columns())
    assert np.all(np.abs(columns.pop("mean_low")) <= 2.0**-53 * np.abs(columns["mean"]))
    return {**columns, "mean()": a.mean(), "variance": a.variance()}


def oracle_moments(d: Data) -> Values:
    weight, mean = d.column_weights(), d.mean()
    x = np.where(d.missing, np.nan, d.x.astype(np.float64))
    m2 = np.sum(d.filled(mean) ** 2, axis=0)
    spread = 1.0 + np.nanmax(np.abs(x), initial=0.0)
    low = np.min(x, axis=0, where=~d.missing, initial=np.inf)
    high = np.max(x, axis=0, where=~d.missing, initial=-np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(weight > 1, m2 / (weight - 1), np.nan)
    total = 1.0 + m2.max(initial=0.0)
    return {
        "count": ((~d.missing).sum(axis=0), 0),
        "missing": (d.missing.sum(axis=0), 0),
        "weight": (weight, 1 + weight),
        "mean": (mean, spread),
        "mean()": (mean, spread),
        "m2": (m2, total),
        "minimum": (low, 0),
        "maximum": (high, 0),
        "variance": (variance, total),
    }


def read_scatter(a: Any) -> dict[str, Any]:
    state = a.state()
    results = {
        name: state[name] for name in ("count", "weight", "mean", "missing") if name in state
    }
    if isinstance(a, MeanImputedScatter):
        results["mean"] = a.mean
    results["scatter"] = a.scatter()
    if results["weight"] > 1:
        results["covariance"] = a.covariance()
    if isinstance(a, RFactor):
        results["singular"] = np.linalg.svd(a.r_factor(), compute_uv=False)
    return results


def oracle_scatter(center: bool, factor: bool = False) -> Callable[[Data], Values]:
    def oracle(d: Data) -> Values:
        z = d.filled(d.mean() if center else None)
        s, weight = z.T @ z, d.weights.sum()
        spread = 1.0 + np.abs(d.filled()).max(initial=0.0)
        size = 1.0 + np.max(np.diagonal(s), initial=0.0)
        values: Values = {
            "count": (len(d.x), 0),
            "weight": (weight, weight),
            "mean": (d.mean(), spread),
            "missing": (d.missing.sum(axis=0), 0),
            "scatter": (s, size),
        }
        if weight > 1:
            values["covariance"] = (s / (weight - 1), size / (weight - 1))
        if factor:
            singular = np.zeros(z.shape[1])
            singular[: min(z.shape)] = np.linalg.svd(z, compute_uv=False)
            values["singular"] = (singular, np.sqrt(size) * 10)
        return values

    return oracle


def read_truncated(a: TruncatedFactor) -> dict[str, Any]:
    b = a.factor()
    names = ("count", "weight", "mean", "missing", "m2", "lost")
    return {**{name: a.state()[name] for name in names}, "scatter": b.T @ b}


def oracle_truncated(d: Data) -> Values:
    """Of a factor with no fewer rows than columns: nothing is cut off."""
    values = oracle_scatter(True)(d)
    scatter, size = values["scatter"]
    values.pop("covariance", None)
    return {**values, "m2": (np.diagonal(scatter), size), "lost": (0.0, 0)}


def read_gram(a: Gram) -> dict[str, Any]:
    gram = a.gram()
    return {
        "gram": gram,
        "spectrum": np.sort(np.linalg.eigvalsh(gram))[::-1],
        "z_probe": a.state()["z_probe"],
        "n_features": a.n_features,
        "n_used": a.n_used,
    }


def oracle_gram(standardize: Standardize) -> Callable[[Data], Values]:
    def oracle(d: Data) -> Values:
        weight, mean = d.column_weights(), d.mean()
        m2 = np.sum(d.filled(mean) ** 2, axis=0)
        constant = m2 <= 1e-20 * (1 + weight * mean**2)
        scale = None
        if standardize.scale == "std":
            freedom = weight - standardize.ddof
            safe = np.where(freedom > 0, freedom, 1.0)
            scale = np.where(constant | (freedom <= 0), 0.0, np.sqrt(m2 / safe))
        z = d.filled(mean if standardize.center else None, scale)
        gram, size = z @ z.T, 1.0 + np.sum(z**2)
        used = ~constant & ((~d.missing).sum(axis=0) > 0)
        return {
            "gram": (gram, size),
            "n_features": (d.x.shape[1], 0),
            "n_used": (used.sum(), 0),
            "spectrum": (np.sort(np.linalg.eigvalsh(gram))[::-1], size),
            "z_probe": (z @ probe(0, z.shape[1]), 1.0 + np.abs(z).sum()),
        }

    return oracle


def oracle_cross(center: bool, scale: bool) -> Callable[[Data], Values]:
    def oracle(d: Data) -> Values:
        z = d.filled(
            d.operands["center"] if center else None, d.operands["scale"] if scale else None
        )
        y = d.y * np.sqrt(d.weights)[:, None]
        return {"cross_product": (z.T @ y, 1.0 + np.linalg.norm(z) * np.linalg.norm(y))}

    return oracle


def read_directions(a: LeadingDirections) -> dict[str, Any]:
    factor = a.rows()
    return {"scatter": factor.T @ factor}


def oracle_directions(axis: int) -> Callable[[Data], Values]:
    """Of a factor with no fewer rows than the matrix has columns: nothing is left out."""

    def oracle(d: Data) -> Values:
        z = d.filled(d.mean())
        scatter = z @ z.T if axis else z.T @ z
        return {"scatter": (scatter, 1.0 + np.sum(z**2))}

    return oracle


def read_step(a: SubspaceStep) -> dict[str, Any]:
    results = {"product": a.finished(), "image": a.image()}
    return {**results, "z_probe": a.state()["z_probe"]} if a.probe else results


def oracle_step(axis: int) -> Callable[[Data], Values]:
    def oracle(d: Data) -> Values:
        z, q = d.filled(d.operands["center"], d.operands["scale"]), d.q(axis)
        inner = z.T @ q if axis else z @ q
        outer = z @ inner if axis else z.T @ inner
        size, length = 1.0 + np.sum(z**2), 1.0 + np.linalg.norm(q)
        values: Values = {"product": (outer, size * length)}
        values["image"] = (inner, np.sqrt(size) * length)
        if axis:
            values["z_probe"] = (z @ probe(0, z.shape[1]), 1.0 + np.abs(z).sum())
        return values

    return oracle


def oracle_reconstruction(d: Data) -> Values:
    z, v = d.filled(d.operands["center"]), d.operands["components"]
    errors = [np.sum((z - (z @ v[:k].T) @ v[:k]) ** 2) for k in range(len(v) + 1)]
    return {"errors": (np.array(errors), 1.0 + np.sum(z**2)), "count": (len(d.x), 0)}


def read_projection(a: FeatureProjection) -> dict[str, Any]:
    scores, norms = a.projected(), a.state()["norms"]
    return {"scores": scores, "norms": norms, "errors": a.errors(0.0)}


def read_distances(a: FeatureDistances) -> dict[str, Any]:
    n, k = a.projected().shape
    lost = np.zeros(n) if a.lost is None else a.lost
    pairs = np.zeros((n, k * (k + 1) // 2)) if a.pairs is None else a.pairs
    values = {"norms": a.norms, "lost": lost, "pairs": pairs}
    return {"scores": a.projected(), **{name: np.array(one) for name, one in values.items()}}


def oracle_distances(d: Data) -> Values:
    z, v = d.filled(d.operands["center"], d.operands["scale"]), d.operands["components"]
    missing, (a, b) = d.missing.astype(float), np.tril_indices(len(v))
    norms = np.sum(z**2, axis=1)
    return {
        "scores": (z @ v.T, 1.0 + np.sqrt(norms)[:, None]),
        "norms": (norms, 1.0 + norms),
        "lost": (missing.sum(axis=1), 0),
        "pairs": (missing @ (v[a] * v[b]).T, 1.0),
    }


def oracle_projection(d: Data) -> Values:
    z, v = d.filled(d.operands["center"], d.operands["scale"]), d.operands["components"]
    errors = [np.sum((z - (z @ v[:k].T) @ v[:k]) ** 2) for k in range(len(v) + 1)]
    norms = np.sum(z**2, axis=1)
    return {
        "scores": (z @ v.T, 1.0 + np.sqrt(norms)[:, None]),
        "norms": (norms, 1.0 + norms),
        "errors": (np.array(errors), 1.0 + norms.sum()),
    }


def read_feature_posterior(a: FeaturePosterior) -> dict[str, Any]:
    return dict(zip(("b", "squares", "tables"), a.sums(), strict=True))


def oracle_feature_posterior(d: Data) -> Values:
    o = d.operands
    z = d.filled(o["center"], o["scale"])
    squares = z**2 @ o["inverse_noise"]
    tables = (~d.missing).astype(float) @ o["table"]
    size = 1.0 + np.linalg.norm(z, axis=1)
    return {
        "b": (z @ o["weighted"], size[:, None]),
        "squares": (squares, 1.0 + squares),
        "tables": (tables, 1.0 + np.abs(tables)),
    }


def read_latent_equations(a: LatentEquations) -> dict[str, Any]:
    left, right = a.equations()
    rest = {name: np.array(getattr(a, name)) for name in ("squares", "mean", "moment", "rows")}
    return {"left": left, "right": right, "likelihood": a.likelihood, **rest}


def oracle_latent_equations(d: Data) -> Values:
    """Row by row, each by the normal distribution of what it observes."""
    o = d.operands
    w, noise = o["loadings"], o["noise"]
    (p, k), n = w.shape, len(d.x)
    z = Data(d.x, d.missing, np.ones(n)).filled(o["center"], o["scale"])
    left, right = np.zeros((p, k + 1, k + 1)), np.zeros((p, k + 1))
    mean, moment, likelihood, size = np.zeros(k), np.zeros((k, k)), 0.0, 1.0
    for row, hole, weight in zip(z, d.missing, d.weights, strict=True):
        seen = ~hole & (noise > 0)
        v, x = w[seen], row[seen]
        sigma = v @ v.T + np.diag(noise[seen])
        gain = v.T @ np.linalg.inv(sigma)
        f, spread = gain @ x, np.eye(k) - gain @ v
        one = np.append(f, 1.0)
        both = np.outer(one, one)
        both[:k, :k] += spread
        for j in np.flatnonzero(~hole):
            left[j] += weight * both
            right[j] += weight * row[j] * one
        mean, moment = mean + weight * f, moment + weight * both[:k, :k]
        if len(x):
            likelihood += weight * multivariate_normal(np.zeros(len(x)), sigma).logpdf(x)
        size += weight * (p + float(row @ row))
    lower = moment[np.tril_indices(k)]
    rows = d.weights.sum()
    squares = d.filled(o["center"], o["scale"]) ** 2
    left[noise == 0], right[noise == 0] = 0.0, 0.0  # not solved
    return {
        "left": (left, size),
        "right": (right, size),
        "likelihood": (likelihood, size),
        "squares": (squares.sum(axis=0), size),
        "mean": (mean, size),
        "moment": (lower, size),
        "rows": (rows, size),
    }


def read_row_information(a: RowInformation) -> dict[str, Any]:
    names = ("information", "b", "squares", "logs", "seen")
    return dict(zip(names, a.sums(), strict=True)) | {"rest": a.rest, "cells": a.cells}


def oracle_row_information(d: Data) -> Values:
    o, table = d.operands, d.columns
    w, noise = o["loadings"], o["noise"]
    used = noise > 0
    inverse = np.where(used, 1 / np.where(used, noise, 1), 0)
    z, seen = d.filled(o["center"], o["scale"]), (~d.missing).astype(float)
    information = np.einsum("ij,ja,jb,j->iab", seen, w, w, inverse)
    lower = np.tril_indices(w.shape[1])
    logs = seen @ np.log(np.where(used, noise, 1.0))
    size = 1.0 + np.linalg.norm(z, axis=1)
    return {
        "information": (information[:, lower[0], lower[1]], 1.0 + len(w)),
        "b": (z @ (w * inverse[:, None]), size[:, None]),
        "squares": (z**2 @ inverse, size**2),
        "logs": (logs, 1.0 + np.abs(logs)),
        "seen": (seen @ used, 0),
        "rest": (table[used, -2].sum(), 1.0 + table[:, -2].sum()),
        "cells": (table[used, -1].sum(), 1.0 + table[:, -1].sum()),
    }


def oracle_cross_moments(d: Data) -> Values:
    weight = d.weights.sum()
    y_mean = d.weights @ d.y / max(weight, 1e-300)
    z, y = d.filled(d.mean()), (d.y - y_mean) * np.sqrt(d.weights)[:, None]
    return {
        "weight": (weight, weight),
        "mean": (d.mean(), 1.0 + np.abs(d.filled()).max(initial=0.0)),
        "deviations": (z.T @ y, 1.0 + np.linalg.norm(z) * np.linalg.norm(y)),
    }


def read_cross_moments(a: CrossMoments) -> dict[str, Any]:
    deviations, state = a.deviations(), a.state()
    return {"weight": state["weight"], "mean": state["mean"], "deviations": deviations}


RIDGES = (0.5, 2.0)


def lines_of(d: Data, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(z, observed) with the streamed lines as rows, and q."""
    z, seen = d.filled(d.operands["center"], d.operands["scale"]), (~d.missing).astype(float)
    return (z.T, seen.T, d.q(axis)) if axis else (z, seen, d.q(axis))


def read_alternating(a: AlternatingStep) -> dict[str, Any]:
    sums = [a.equations(c) for c in range(len(a.ranks))]
    state = {name: a.state()[name] for name in ("gram", "sums", "squares", "cells", "residual")}
    left, right = (np.vstack([one[i] for one in sums]) for i in (0, 1))
    return {"left": left, "right": right, **state}


def oracle_alternating(axis: int, d: Data) -> Values:
    z, seen, v = lines_of(d, axis)
    ridge = np.array(RIDGES)
    least = seen @ v**2 + ridge
    u, most = (z @ v) / least, (abs(z) @ abs(v)) / least
    rest = [seen * (z - np.outer(one, q)) for one, q in zip(u.T, v.T, strict=True)]
    size = [seen * (abs(z) + np.outer(one, abs(q))) for one, q in zip(most.T, v.T, strict=True)]
    return {
        "left": ((u**2).T @ seen, 1.0 + (most**2).T @ seen),
        "right": (
            np.stack([one @ r for one, r in zip(u.T, rest, strict=True)]),
            1.0 + np.stack([one @ s for one, s in zip(most.T, size, strict=True)]),
        ),
        "gram": (np.diag((u**2).sum(axis=0)), 1.0 + most.T @ most),
        "sums": (u.sum(axis=0), 1.0 + most.sum(axis=0)),
        "squares": (np.sum(z**2), 1.0 + np.sum(z**2)),
        "cells": (seen.sum(), 0),
        "residual": ([np.sum(r**2) for r in rest], 1.0 + np.array([np.sum(s**2) for s in size])),
    }


def read_biased(a: AlternatingStep) -> dict[str, Any]:
    values = read_alternating(a)
    return values | {"seen": a.state()["seen"]}


def oracle_biased(d: Data) -> Values:
    """Without components: a_i given the second column of q, across, and then b_j's equations."""
    z, seen, q = lines_of(d, 0)
    along, fixed = q.T
    over = seen @ along**2 + RIDGES[0]
    a = (z @ along - seen @ (along * fixed)) / over
    most = (abs(z) @ abs(along) + seen @ abs(along * fixed)) / over
    rest = seen * (z - np.outer(a, along) - fixed)
    size = seen * (abs(z) + np.outer(most, abs(along)) + abs(fixed))
    u = np.column_stack([a, np.ones(len(a))])
    greatest = np.column_stack([most, np.ones(len(a))])
    return {
        "left": (seen.sum(axis=0)[None], 0),
        "right": (rest.sum(axis=0)[None], 1.0 + size.sum(axis=0)[None]),
        "gram": (u.T @ u, 1.0 + greatest.T @ greatest),
        "sums": (u.sum(axis=0), 1.0 + greatest.sum(axis=0)),
        "squares": (np.sum(z**2), 1.0 + np.sum(z**2)),
        "cells": (seen.sum(), 0),
        "residual": ([np.sum(rest**2)], 1.0 + np.sum(size**2)),
        "seen": (np.count_nonzero(seen.any(axis=1)), 0),
    }


def oracle_row_spread(d: Data) -> Values:
    x, seen, _ = lines_of(dataclasses.replace(d, weights=np.ones(len(d.x))), 0)
    count = seen.sum(axis=1)
    each = d.weights * count
    means = x.sum(axis=1) / np.maximum(count, 1)
    mean = float(each @ means / each.sum()) if each.any() else 0.0
    largest = 1.0 + np.abs(x).max(initial=0.0)
    return {
        "rows": (d.weights[count > 0].sum(), d.weights.sum()),
        "cells": (each.sum(), each.sum()),
        "cells_squared": (each @ count, each @ count),
        "mean": (mean, largest),
        "between": (each @ (means - mean) ** 2, largest**2 * (1.0 + each.sum())),
    }


def read_filled(a: FilledStep) -> dict[str, Any]:
    names = ("gram", "cross", "old_gram", "squares", "cells", "residual")
    if a.whole:
        low = a.lower(0)
        sums = {"product": np.tril(low) + np.tril(low, -1).T}
    else:
        sums = dict(zip(("product", "inner"), a.subspace(0), strict=True))
    return {**sums, **{name: a.state()[name] for name in names}}


def oracle_filled(axis: int, whole: bool, d: Data) -> Values:
    z, seen, old = lines_of(d, axis)
    new, turn, before = old + 0.25, 0.5 * old, d.u(axis)
    after = np.where(seen, z, before @ old.T) @ turn
    y = np.where(seen, z, after @ new.T)
    size = 1.0 + np.linalg.norm(y) + np.linalg.norm(after) + np.linalg.norm(before)
    squares, s = size**2, y @ new
    values: Values = {
        "gram": (after.T @ after, squares),
        "cross": (before.T @ after, squares),
        "old_gram": (before.T @ before, squares),
        "squares": (np.sum(z**2), squares),
        "cells": (seen.sum(), 0),
        "residual": ([np.sum(((z - after @ new.T) * seen) ** 2)], 4 * squares),
        "product": (y.T @ y if whole else y.T @ s, 4 * squares),
    }
    return values if whole else {**values, "inner": (s.T @ s, 4 * squares)}


def oracle_two_way(axis: int, d: Data) -> Values:
    z, seen, _ = lines_of(dataclasses.replace(d, weights=np.ones(len(d.x))), axis)
    along, each = (1.0, d.weights) if axis else (d.weights[:, None], 1.0)
    scale = d.operands["scale"]
    over = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    lines, across = (over, np.ones(len(d.x))) if axis else (np.ones(len(d.x)), over)
    weight = seen @ (across * each)
    step = np.divide((z * each).sum(axis=1), weight, out=np.zeros(len(z)), where=weight > 0)
    size = np.abs(z) + np.abs(step[:, None] * across)
    left = seen * (z - step[:, None] * across)
    t = lines[:, None]
    table = [seen, seen * t, seen * t**2, left, left * t, left**2]
    sizes = [seen, seen * t, seen * t**2, size, size * t, size**2]
    table, sizes = ([*(one * along for one in many), seen] for many in (table, sizes))
    most = 1.0 + np.abs(z).sum() + np.abs(step).sum()
    return {
        "table": (
            np.stack([one.sum(axis=0) for one in table]),
            np.stack([one.sum(axis=0) for one in sizes]) * (1.0 + most),
        ),
        "squares": (np.sum(table[5]), np.sum(sizes[5]) * (1.0 + most)),
        "largest": (np.abs(left).max(initial=0.0), most),
    }


def read_two_way(a: TwoWayStep) -> dict[str, Any]:
    m = 0 if a.table is None else a.table.shape[1]
    a.across(np.zeros(m), np.ones(m), 1e-16)
    return {name: a.state()[name] for name in ("table", "squares", "largest")}


def oracle_nearest(d: Data) -> Values:
    queries = d.operands["queries"]
    x = np.where(d.missing, 3.0, d.x.astype(np.float64))[d.weights > 0]
    found = np.sort(((queries[:, None, :] - x[None, :, :]) ** 2).sum(axis=2), axis=1)[:, :2]
    nearest = np.full((len(queries), 2), np.inf)  # the origin of the operands is 3
    nearest[:, : found.shape[1]] = found
    size = 1.0 + np.abs(x).max(initial=0.0) + np.abs(queries).max(initial=0.0)
    return {"squares": (nearest, x.shape[1] * size**2)}
