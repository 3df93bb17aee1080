"""The laws of every accumulator, from one list: to add one, add a row to ``CASES``."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import streampca.matrix.tiles as tiles_module
from streampca.accumulators import (
    Accumulator,
    AlternatingStep,
    CrossMoments,
    CrossProduct,
    FeaturePosterior,
    FeatureProjection,
    FilledStep,
    Gram,
    LatentEquations,
    LeadingDirections,
    MeanImputedScatter,
    Moments,
    Reconstruction,
    RFactor,
    RowInformation,
    RowMissing,
    Scatter,
    SubspaceStep,
    TruncatedFactor,
    TwoWayStep,
)
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.kernels import probe
from streampca.matrix import Block, Labels, Standardize, work_dtype
from streampca.store import read_bundle, write_bundle

DTYPES = ("float32", "float64", "int8", "int16")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
Values = dict[str, tuple[Any, Any]]  # name -> (value, magnitude of what was summed)


# -- what is put in --------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """A matrix, its missing cells and weights, and the arrays that lie beside it."""

    x: np.ndarray
    missing: np.ndarray
    weights: np.ndarray

    @property
    def y(self) -> np.ndarray:
        return np.random.default_rng(1).normal(size=(len(self.x), 3))

    def u(self, axis: int) -> np.ndarray:
        """Factors of the streamed lines, as wide as q."""
        return np.random.default_rng(2).normal(size=(self.x.shape[axis], self.q(axis).shape[1]))

    @property
    def operands(self) -> dict[str, np.ndarray]:
        p = self.x.shape[1]
        rng = np.random.default_rng(p)
        square = np.linalg.qr(rng.normal(size=(p, p)))[0] if p else np.zeros((0, 0))
        scale = 1.0 + rng.random(p)
        scale[p // 2 :][:1] = 0.0  # a constant feature
        return {
            "components": square[: min(2, p)],
            "center": rng.normal(size=p),
            "scale": scale,
            "weighted": square[: min(2, p)].T,
            "loadings": square[: min(2, p)].T + 0.5,
            "noise": np.where(np.arange(p) == 1, 0.0, 0.5 + np.arange(p)),
            "inverse_noise": np.arange(p) / max(p, 1),
            "table": np.outer(1.0 + np.arange(p), [1.0, -0.5, 0.0]),
        }

    @property
    def columns(self) -> np.ndarray:
        """(p, 6) loadings, centre, noise, what they leave, weight seen: of streamed columns."""
        o = self.operands
        rest = 1.0 + np.arange(self.x.shape[1])
        return np.column_stack([o["loadings"], o["center"], o["noise"], rest, 2.0 * rest])

    def q(self, axis: int) -> np.ndarray:
        """(m, 2) a block of vectors on the axis that is not streamed."""
        return np.random.default_rng(2).normal(size=(self.x.shape[1 - axis], 2))

    def beside(self, axis: int, part: slice) -> dict[str, np.ndarray]:
        """What lies beside a block of these streamed lines."""
        q = self.q(axis).astype(work_dtype(self.x.dtype))
        factors = {"q": q, "v": q, "old": q, "new": q + 0.25, "turn": 0.5 * q}
        sides = {"y": self.y[part]} if axis == 0 else {"columns": self.columns[part]}
        return {**self.operands, **factors, **sides, "u_old": self.u(axis)[part]}

    def filled(self, center: Any = None, scale: Any = None) -> np.ndarray:
        """(x - center) / scale in float64, missing cells 0, rows times sqrt(weight)."""
        z = np.where(self.missing, 0.0, self.x.astype(np.float64))
        if center is not None:
            z = z - center
        if scale is not None:
            z = z * np.where(scale > 0, 1.0 / np.where(scale > 0, scale, 1.0), 0.0)
        return np.where(self.missing, 0.0, z) * np.sqrt(self.weights)[:, None]

    def column_weights(self) -> np.ndarray:
        return (self.weights[:, None] * ~self.missing).sum(axis=0)

    def mean(self) -> np.ndarray:
        seen = self.column_weights()
        x = np.where(self.missing, 0.0, self.x.astype(np.float64))
        return (self.weights @ x) / np.where(seen > 0, seen, 1.0)


def data(seed: int, n: int, p: int, dtype: str = "float64", offset: float = 3.0) -> Data:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, size=(n, p), endpoint=True).astype(dtype)
    else:
        x = (rng.normal(size=(n, p)) + offset).astype(dtype)
    return Data(x, np.zeros((n, p), dtype=bool), np.ones(n))


def blocks(
    case: Case, d: Data, edges: Any, *, weighted: bool = False, **more: Any
) -> Iterator[Block]:
    """The matrix in blocks, with the arrays that the case's accumulator asks for."""
    axis = case.axis
    length = d.x.shape[axis]
    hidden = more.pop("hidden", None)
    for i, (start, stop) in enumerate(pairwise(edges)):
        part = slice(start, stop)
        yield Block(
            d.x[:, part] if axis else d.x[part],
            axis,
            start,
            stop,
            i,
            Labels.plain(d.x.shape),
            weights=None if not weighted else d.weights if axis else d.weights[part],
            hidden=None if hidden is None else hidden[:, part] if axis else hidden[part],
            arrays=d.beside(axis, part),
            **more,
        )
    assert edges[-1] == length


def fold(case: Case, d: Data, edges: Any = None, **more: Any) -> Accumulator:
    """All blocks into one accumulator."""
    accumulator = case.make()
    whole = (0, d.x.shape[case.axis])
    for block in blocks(case, d, whole if edges is None else edges, **more):
        accumulator.update(block)
    return accumulator


# -- the list --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One accumulator: how to make it, what can be read from it, and what NumPy says.

    read : named results, fresh.  oracle : the same from the data.  holes : "refuse" or "fill".
    by_row : results that a row of integer weight w shares with w repeated rows.
    single : what is kept in the working dtype.
    """

    name: str
    make: Callable[[], Accumulator]
    read: Callable[[Any], Mapping[str, Any]]
    oracle: Callable[[Data], Values]
    axis: int = 0
    holes: str = "fill"
    by_row: tuple[str, ...] = ()
    single: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


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


def scatter_case(name: str, make: Callable[[], Accumulator], center: bool, **more: Any) -> Case:
    oracle = oracle_scatter(center, factor=more.pop("factor", False))
    by_row = ("weight", "mean", "scatter", "covariance")
    return Case(name, make, read_scatter, oracle, by_row=by_row, **more)


def gram_case(name: str, standardize: Standardize, missing: str = "raise") -> Case:
    return Case(
        name,
        lambda: Gram(standardize=standardize, missing=missing),
        read_gram,
        oracle_gram(standardize),
        axis=1,
        holes="fill" if missing == "mean" else "refuse",
        by_row=("spectrum", "n_features", "n_used"),
    )


def cross_case(name: str, center: bool, scale: bool) -> Case:
    operands = {"center": "center" if center else None, "scale": "scale" if scale else None}
    return Case(
        name,
        lambda: CrossProduct(y="y", **operands),
        lambda a: {"cross_product": a.cross_product()},
        oracle_cross(center, scale),
    )


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
        "gram": (u.T @ u, 1.0 + most.T @ most),
        "sums": (u.sum(axis=0), 1.0 + most.sum(axis=0)),
        "squares": (np.sum(z**2), 1.0 + np.sum(z**2)),
        "cells": (seen.sum(), 0),
        "residual": ([np.sum(r**2) for r in rest], 1.0 + np.array([np.sum(s**2) for s in size])),
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


CASES = [
    Case(
        "Moments",
        Moments,
        read_moments,
        oracle_moments,
        by_row=("weight", "mean", "m2", "variance"),
    ),
    Case(
        "Moments-features",
        Moments,
        read_moments,
        oracle_moments,
        axis=1,
        by_row=("weight", "mean", "m2", "variance"),
    ),
    scatter_case("Scatter", Scatter, True, holes="refuse"),
    scatter_case("Scatter-uncentred", lambda: Scatter(center=False), False, holes="refuse"),
    scatter_case("MeanImputedScatter", MeanImputedScatter, True),
    scatter_case("RFactor", RFactor, True, holes="refuse", factor=True),
    scatter_case(
        "RFactor-uncentred", lambda: RFactor(center=False), False, holes="refuse", factor=True
    ),
    Case(
        "TruncatedFactor",
        lambda: TruncatedFactor(rows=8),
        read_truncated,
        oracle_truncated,
        holes="refuse",
        by_row=("weight", "mean", "scatter", "m2"),
    ),
    gram_case("Gram", Standardize()),
    gram_case("Gram-std", Standardize(scale="std")),
    gram_case("Gram-std-ddof0", Standardize(scale="std", ddof=0), missing="mean"),
    gram_case("Gram-uncentred", Standardize(center=False), missing="mean"),
    Case(
        "CrossMoments",
        lambda: CrossMoments(y="y", width=3),
        read_cross_moments,
        oracle_cross_moments,
        holes="refuse",
    ),
    cross_case("CrossProduct", True, True),
    cross_case("CrossProduct-raw", False, False),
    Case(
        "Reconstruction",
        Reconstruction,
        lambda a: {"errors": a.errors(), "count": a.count},
        oracle_reconstruction,
    ),
    Case(
        "LeadingDirections",
        lambda: LeadingDirections(streamed=0, standardize=Standardize(), width=8),
        read_directions,
        oracle_directions(0),
        single=("factor",),
        holes="refuse",
        by_row=("scatter",),
    ),
    Case(
        "LeadingDirections-features",
        lambda: LeadingDirections(streamed=1, standardize=Standardize(), width=8, missing="mean"),
        read_directions,
        oracle_directions(1),
        single=("factor",),
        axis=1,
    ),
    Case(
        "SubspaceStep",
        lambda: SubspaceStep(streamed=0, width=2, images=True),
        read_step,
        oracle_step(0),
        single=("image", "table"),
        by_row=("product",),
    ),
    Case(
        "SubspaceStep-features",
        lambda: SubspaceStep(streamed=1, width=2, images=True, probe=True),
        read_step,
        oracle_step(1),
        single=("image", "table"),
        axis=1,
    ),
    Case(
        "FeatureProjection",
        lambda: FeatureProjection(scale="scale"),
        read_projection,
        oracle_projection,
        axis=1,
    ),
    Case(
        "FeatureProjection-raise",
        lambda: FeatureProjection(scale="scale", missing="raise", absent=(0, 2, 4)),
        read_projection,
        oracle_projection,
        axis=1,
        holes="refuse",
    ),
    Case(
        "FeaturePosterior",
        lambda: FeaturePosterior(scale="scale", missing="mean"),
        read_feature_posterior,
        oracle_feature_posterior,
        axis=1,
    ),
    Case(
        "FeaturePosterior-raise",
        lambda: FeaturePosterior(scale="scale", missing="raise", absent=(0, 2, 4)),
        lambda a: {"b": a.sums()[0], "squares": a.sums()[1]},
        lambda d: {n: v for n, v in oracle_feature_posterior(d).items() if n != "tables"},
        axis=1,
        holes="refuse",
    ),
    Case(
        "LatentEquations",
        lambda: LatentEquations(scale="scale", width=2),
        read_latent_equations,
        oracle_latent_equations,
        by_row=("left", "right", "likelihood", "squares", "mean", "moment", "rows"),
    ),
    *(
        Case(
            f"AlternatingStep-{('samples', 'features')[axis]}",
            partial(AlternatingStep, streamed=axis, ranks=(1, 1), ridges=RIDGES),
            read_alternating,
            partial(oracle_alternating, axis),
            axis=axis,
        )
        for axis in (0, 1)
    ),
    *(
        Case(
            f"FilledStep-{'whole' if whole else 'subspace'}",
            partial(FilledStep, streamed=axis, ranks=(2,), whole=whole),
            read_filled,
            partial(oracle_filled, axis, whole),
            axis=axis,
        )
        for axis, whole in ((0, True), (1, False))
    ),
    *(
        Case(
            f"TwoWayStep-{('samples', 'features')[axis]}",
            partial(TwoWayStep, streamed=axis, scaled=False),
            read_two_way,
            partial(oracle_two_way, axis),
            axis=axis,
        )
        for axis in (0, 1)
    ),
    Case(
        "RowInformation",
        lambda: RowInformation(width=2),
        read_row_information,
        oracle_row_information,
        axis=1,
    ),
    Case(
        "RowMissing",
        RowMissing,
        lambda a: {"missing": a.counts(), "n_features": a.n_features},
        lambda d: {"missing": (d.missing.sum(axis=1), 0), "n_features": (d.x.shape[1], 0)},
        axis=1,
    ),
]

REFUSING = [case for case in CASES if case.holes == "refuse"]
FILLING = [case for case in CASES if case.holes == "fill"]
WEIGHTED = [case for case in CASES if case.by_row]

every = pytest.mark.parametrize("case", CASES, ids=str)
fast = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    """Tiles of three rows in pieces of 64 bytes, so that small blocks have many of both."""
    with pytest.MonkeyPatch.context() as patch:
        pieces = tiles_module.pieces
        patch.setattr(tiles_module, "TILE_LENGTH", 3)
        patch.setattr(tiles_module, "THIN_LENGTH", 3)
        patch.setattr(tiles_module, "TILE_NBYTES", 1)
        patch.setattr(tiles_module, "pieces", lambda *shape: pieces(*shape, 64))
        yield


@st.composite
def drawn(draw: Any, min_rows: int = 1) -> tuple[int, int, int, str]:
    """(seed, rows, columns, dtype)"""
    return (
        draw(st.integers(0, 2**16)),
        draw(st.integers(min_rows, 40)),
        draw(st.integers(1, 7)),
        draw(st.sampled_from(DTYPES)),
    )


def draw_edges(draw: Any, length: int) -> list[int]:
    """Block edges, sometimes with one-row and empty blocks and more than OPEN_BLOCKS of them."""
    inner = draw(st.lists(st.integers(0, length), max_size=24))
    return [0, *sorted(inner), length]


def tolerance(d: Data) -> float:
    return TOLERANCE[work_dtype(d.x.dtype).name]


def assert_close(found: Mapping[str, Any], expected: Values, tol: float) -> None:
    assert set(found) == set(expected)
    for name, (value, size) in expected.items():
        got, want = np.asarray(found[name]), np.asarray(value)
        assert got.shape == want.shape, name
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(invalid="ignore"):
            off = np.where(same, 0.0, np.abs(got - want))
        assert np.all(off <= tol * np.asarray(size)), f"{name}: {got} is not {want}"


def frozen(value: Any) -> Any:
    """Everything in an object, private fields too, in a form that compares bit for bit."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {k: frozen(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: frozen(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Accumulator):
        return frozen(vars(value))
    return type(value).__name__, repr(value)


# -- the laws --------------------------------------------------------------------------------


@every
@fast
@given(draw=st.data(), how=drawn())
def test_any_chunking_gives_the_answer_of_numpy(case: Case, draw: Any, how: Any) -> None:
    d = data(*how)
    edges = draw_edges(draw.draw, d.x.shape[case.axis])
    assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@every
@fast
@given(draw=st.data(), how=drawn())
def test_merge_in_any_order_or_tree_changes_only_rounding(case: Case, draw: Any, how: Any) -> None:
    d = data(*how)
    edges = draw_edges(draw.draw, d.x.shape[case.axis])
    waiting = []
    for block in blocks(case, d, edges):
        waiting.append(case.make())
        waiting[-1].update(block)
    while len(waiting) > 1:
        i = draw.draw(st.integers(0, len(waiting) - 1))
        taken = waiting.pop(i)
        j = draw.draw(st.integers(0, len(waiting) - 1))
        waiting[j].merge(taken)
    assert_close(case.read(waiting[0]), case.oracle(d), tolerance(d))


@every
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("seen_empty_block", [False, True])
def test_empty_is_neutral(case: Case, dtype: str, seen_empty_block: bool) -> None:
    d = data(3, 11, 5, dtype)
    full = fold(case, d, (0, 4, d.x.shape[case.axis]))
    expected = case.read(full)
    nothing = d.x[:, :0] if case.axis else d.x[:0]

    def empty() -> Accumulator:
        accumulator = case.make()
        if seen_empty_block:
            arrays = d.beside(case.axis, slice(0, 0))
            accumulator.update(Block(nothing, case.axis, 0, 0, arrays=arrays))
        return accumulator

    left = empty()
    left.merge(full)
    right = full.copied()
    right.merge(empty())
    for merged in (left, right):
        assert frozen(dict(case.read(merged))) == frozen(dict(expected))


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_empty_with_empty_is_empty(case: Case, dtype: str) -> None:
    a, b = case.make(), case.make()
    a.merge(b)
    assert frozen(a.state()) == frozen(case.make().state())
    d = data(4, 6, 3, dtype)
    for block in blocks(case, d, (0, d.x.shape[case.axis])):
        a.update(block)
    assert frozen(a.state()) == frozen(fold(case, d).state())


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("settled", [False, True])
def test_merge_leaves_its_argument_alone(case: Case, dtype: str, settled: bool) -> None:
    d = data(5, 12, 6, dtype)
    length = d.x.shape[case.axis]
    first, second, third = blocks(case, d, (0, 3, 5, length))
    for start in ([], [first]):
        mine, other = case.make(), case.make()
        for block in start:
            mine.update(block)
        other.update(second)
        if settled:
            other.settle()
        before = frozen(other)
        mine.merge(other)
        assert frozen(other) == before
        mine.update(third)  # nothing of other's may live on in mine
        mine.settle()
        mine.merge(case.make())
        assert frozen(other) == before


@every
@fast
@given(how=drawn())
def test_state_round_trips_bit_for_bit(case: Case, how: Any) -> None:
    d = data(*how)
    length = d.x.shape[case.axis]
    edges = (0, length // 2, length)
    accumulator = fold(case, d, edges)
    before = frozen(accumulator)
    state = accumulator.state()
    assert frozen(accumulator) == before, "state() changed what it read"
    restored = case.make().from_state(state)
    assert frozen(restored.state()) == frozen(state)
    assert frozen(dict(case.read(restored))) == frozen(
        dict(case.read(case.make().from_state(state)))
    )
    # what is restored goes on as the original would have gone on
    accumulator.settle()
    for goes_on in (accumulator, restored):
        for block in blocks(case, d, edges):
            goes_on.update(block)
    assert frozen(accumulator.state()) == frozen(restored.state())


@every
@pytest.mark.parametrize("filled", [False, True])
def test_state_survives_a_bundle_bit_for_bit(case: Case, filled: bool, tmp_path: Any) -> None:
    d = data(6, 9, 4, "float32")
    accumulator = fold(case, d, (0, 2, d.x.shape[case.axis])) if filled else case.make()
    write_bundle(tmp_path / "state", accumulator.state(), {})
    arrays, _ = read_bundle(tmp_path / "state")
    assert frozen(arrays) == frozen(accumulator.state())
    assert frozen(case.make().from_state(arrays).state()) == frozen(accumulator.state())


@every
def test_state_is_not_shared(case: Case) -> None:
    d = data(7, 9, 4)
    accumulator = fold(case, d)
    before = frozen(accumulator)
    state = accumulator.state()
    restored = case.make().from_state(state)
    for array in state.values():
        if array.ndim:
            array[...] = 99
    assert frozen(accumulator) == before
    assert frozen(restored.state()) == frozen(accumulator.state())


@every
def test_unknown_state_is_refused(case: Case) -> None:
    state = {**fold(case, data(7, 9, 4)).state(), "entropy": np.zeros(3)}
    with pytest.raises(InvalidInputError, match="entropy"):
        case.make().from_state(state)


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reading_twice_gives_equal_unshared_arrays(case: Case, dtype: str) -> None:
    accumulator = fold(case, data(8, 9, 4, dtype))
    before = frozen(accumulator)
    first = dict(case.read(accumulator))
    kept = copy.deepcopy(first)
    for value in first.values():
        if isinstance(value, np.ndarray) and value.ndim:
            value[...] = 77
    assert frozen(accumulator) == before, "reading changed the accumulator"
    assert frozen(dict(case.read(accumulator))) == frozen(kept)


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_one_column_and_empty_blocks_count(case: Case, dtype: str) -> None:
    for n, p in ((1, 1), (1, 5), (7, 1), (2, 2)):
        d = data(9, n, p, dtype)
        length = d.x.shape[case.axis]
        edges = [0, 0, *range(length + 1), length]
        assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@every
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_kept_is_float64(case: Case, dtype: str) -> None:
    accumulator = fold(case, data(10, 9, 4, dtype), None)
    for values in (accumulator.state(), case.read(accumulator)):
        for name, value in values.items():
            if np.asarray(value).dtype.kind == "f":
                kept = work_dtype(np.dtype(dtype)) if name in case.single else np.float64
                assert np.asarray(value).dtype == kept, name


# -- missing values --------------------------------------------------------------------------


def with_nan(d: Data, cells: Any) -> Data:
    x, missing = d.x.copy(), d.missing.copy()
    x[cells] = np.nan
    missing[cells] = True
    return Data(x, missing, d.weights)


@pytest.mark.parametrize("case", REFUSING, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_partly_missing_column_is_refused_by_name(case: Case, dtype: str) -> None:
    d = with_nan(data(11, 12, 6, dtype), ([7, 8], [3, 3]))
    length = d.x.shape[case.axis]
    wrong = 1 if case.axis == 0 else 0
    with pytest.raises(NonFiniteError) as caught:
        fold(case, d, (0, 5, length))
    text = str(caught.value)
    kind = "features" if case.axis else "samples"
    assert f"block {wrong} ({kind}" in text
    assert "feature 3" in text
    assert "2 missing" in text
    assert "missing='mean'" in text


@pytest.mark.parametrize("case", [c for c in REFUSING if c.axis == 0], ids=str)
@pytest.mark.parametrize("missing_first", [True, False])
@pytest.mark.parametrize("how", ["update", "merge"])
def test_a_column_missing_in_some_blocks_only_is_refused(
    case: Case, missing_first: bool, how: str
) -> None:
    rows = slice(0, 6) if missing_first else slice(6, 12)
    d = with_nan(data(12, 12, 4), (rows, 2))
    first, second = blocks(case, d, (0, 6, 12))
    a, b = case.make(), case.make()
    a.update(first)
    b.update(second)
    before = a.state()
    with pytest.raises(NonFiniteError, match=r"feature 2|column 2"):
        a.update(second) if how == "update" else a.merge(b)
    if how == "merge":  # refused before anything changed
        after = a.state()
        assert after.keys() == before.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_column_without_observations_is_allowed(case: Case, dtype: str) -> None:
    d = with_nan(data(13, 12, 6, dtype), (slice(None), [0, 4]))
    edges = (0, 0, 1, 5, d.x.shape[case.axis])
    assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("value", "beside_nan"), [(np.inf, False), (-np.inf, True)])
def test_infinity_is_refused_by_name(
    case: Case, dtype: str, value: float, beside_nan: bool
) -> None:
    d = data(14, 12, 6, dtype)
    d.x[8, 3] = value  # feature 3 is scaled by 0 where features are scaled by an operand
    if beside_nan:
        d.x[:, 3] = np.where(np.arange(12) == 8, value, np.nan)
    with pytest.raises(NonFiniteError, match="infinity") as caught:
        fold(case, d, (0, 2, d.x.shape[case.axis]))
    assert "block 1" in str(caught.value)
    assert "feature 3" in str(caught.value)


@pytest.mark.parametrize("case", FILLING, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("share", [0.05, 0.6])
def test_holes_are_left_out_or_filled(case: Case, dtype: str, share: float) -> None:
    d = data(15, 21, 6, dtype)
    d = with_nan(d, np.random.default_rng(0).random(d.x.shape) < share)
    edges = (0, 1, 6, d.x.shape[case.axis])
    assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@pytest.mark.parametrize("case", FILLING, ids=str)
@pytest.mark.parametrize("how", ["code", "hidden", "both", "nan and hidden"])
def test_codes_and_hidden_cells_are_missing(case: Case, how: str) -> None:
    dtype = "float32" if how == "nan and hidden" else "int8"
    d = data(16, 21, 6, dtype)
    rng = np.random.default_rng(2)
    coded, hidden = rng.random(d.x.shape) < 0.2, rng.random(d.x.shape) < 0.2
    more: dict[str, Any] = {}
    missing = np.zeros_like(d.missing)
    if how in ("code", "both"):
        d.x[coded] = -9
        missing |= d.x == -9
        more["missing_value"] = -9
    if how == "nan and hidden":
        d.x[coded] = np.nan
        missing |= coded
    if how != "code":
        missing |= hidden
        more["hidden"] = hidden
    d = Data(d.x, missing, d.weights)
    found = case.read(fold(case, d, (0, 4, 5, d.x.shape[case.axis]), **more))
    assert_close(found, case.oracle(d), tolerance(d))


@pytest.mark.parametrize("case", REFUSING, ids=str)
@pytest.mark.parametrize("how", ["code", "hidden"])
def test_codes_and_hidden_cells_are_refused(case: Case, how: str) -> None:
    d = data(17, 12, 6, "int8")
    d.x[d.x == -9] = 0
    d.x[4, 3] = -9
    more = {"missing_value": -9} if how == "code" else {"hidden": d.x == -9}
    with pytest.raises(NonFiniteError, match="feature 3"):
        fold(case, d, (0, d.x.shape[case.axis]), **more)


@every
def test_a_column_of_codes_alone_is_allowed(case: Case) -> None:
    d = data(18, 12, 6, "int8")
    d.x[d.x == -9] = 0
    d.x[:, 2] = -9
    d = Data(d.x, d.x == -9, d.weights)
    found = case.read(fold(case, d, (0, 5, d.x.shape[case.axis]), missing_value=-9))
    assert_close(found, case.oracle(d), tolerance(d))


# -- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WEIGHTED, ids=str)
@fast
@given(draw=st.data(), how=drawn(min_rows=2))
def test_integer_weights_are_repeated_rows(case: Case, draw: Any, how: Any) -> None:
    d = data(*how)
    weights = np.random.default_rng(how[0]).integers(0, 4, len(d.x))
    weights[0] = 2
    repeated = data(*how)
    repeated = Data(
        np.repeat(d.x, weights, axis=0),
        np.repeat(d.missing, weights, axis=0),
        np.ones(weights.sum()),
    )
    d = Data(d.x, d.missing, weights.astype(np.float64))
    edges = draw_edges(draw.draw, d.x.shape[case.axis])
    found = dict(case.read(fold(case, d, edges, weighted=True)))
    expected = {name: case.oracle(repeated)[name] for name in case.by_row if name in found}
    if "spectrum" in expected:  # the repeated rows have more eigenvalues, all zero
        value, size = expected["spectrum"]
        k = min(len(value), len(d.x))
        expected["spectrum"] = value[:k], size
        found["spectrum"] = found["spectrum"][:k]
    assert_close({name: found[name] for name in expected}, expected, tolerance(d))


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_need_not_be_integers(case: Case, dtype: str) -> None:
    d = data(19, 17, 5, dtype)
    d = Data(d.x, d.missing, np.random.default_rng(3).random(len(d.x)) * 5)
    if case.holes == "fill":
        d = with_nan(d, np.random.default_rng(4).random(d.x.shape) < 0.3)
    found = dict(case.read(fold(case, d, (0, 1, 4, d.x.shape[case.axis]), weighted=True)))
    assert_close(found, case.oracle(d), tolerance(d))


@pytest.mark.parametrize("case", FILLING, ids=str)
def test_a_row_of_weight_zero_may_hold_nan(case: Case) -> None:
    d = data(20, 9, 4)
    d = with_nan(d, ([2, 5], [1, 3]))
    weights = np.ones(9)
    weights[[2, 5]] = 0.0
    d = Data(d.x, d.missing, weights)
    found = case.read(fold(case, d, (0, 3, d.x.shape[case.axis]), weighted=True))
    assert_close(found, case.oracle(d), tolerance(d))


# -- sparse and shapes -----------------------------------------------------------------------


@every
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_sparse_blocks_equal_dense_ones(case: Case, dtype: str) -> None:
    d = data(21, 23, 6, dtype)
    d.x[np.random.default_rng(5).random(d.x.shape) < 0.7] = 0
    # int8 as the older kind, which a block takes apart into the same arrays
    if dtype != "int8":
        compress = scipy.sparse.csc_array if case.axis else scipy.sparse.csr_array
    else:
        compress = scipy.sparse.csc_matrix if case.axis else scipy.sparse.csr_matrix
    edges = (0, 0, 3, d.x.shape[case.axis])
    accumulator = case.make()
    for block in blocks(case, d, edges):
        block.values = compress(block.values)
        accumulator.update(block)
    dense = case.read(fold(case, d, edges))
    sizes = case.oracle(d)
    expected = {name: (value, sizes[name][1]) for name, value in dense.items()}
    assert_close(case.read(accumulator), expected, tolerance(d) / 10)


@every
def test_another_width_is_refused(case: Case) -> None:
    d, wide = data(22, 8, 4), data(22, 8, 5)
    if case.axis:
        wide = data(22, 9, 4)
    a, b = fold(case, d), fold(case, wide)
    before = frozen(a)
    if isinstance(a, Moments) and case.axis:  # blocks of features: more columns are more parts
        wide = data(22, 8, 5)
        b = fold(case, wide)
    block = next(blocks(case, wide, (0, wide.x.shape[case.axis])))
    if isinstance(a, Reconstruction):
        block.arrays = d.operands
    with pytest.raises(InvalidInputError, match=r"\b4\b.*\b5\b|\b5\b.*\b4\b|\b8\b.*\b9\b"):
        a.update(block)
    if not isinstance(a, Reconstruction):  # its sums do not depend on the width
        with pytest.raises(InvalidInputError):
            a.merge(b)
    settled = a.copied()
    settled.settle()
    assert frozen(a) == before or frozen(a) == frozen(settled)


@pytest.mark.parametrize("case", [c for c in CASES if c.make().axis is not None], ids=str)
def test_blocks_along_the_other_axis_are_refused(case: Case) -> None:
    d = data(23, 6, 4)
    block = Block(d.x, 1 - case.axis, 0, d.x.shape[1 - case.axis], arrays={**d.operands, "y": d.y})
    with pytest.raises(InvalidInputError, match="needs blocks of"):
        case.make().update(block)


@every
def test_reading_before_any_block_is_an_error_of_ours(case: Case) -> None:
    with pytest.raises(InvalidInputError):
        case.read(case.make())


@every
def test_blank_has_the_same_settings_and_nothing_seen(case: Case) -> None:
    d = data(24, 9, 4)
    full = fold(case, d)
    blank = full.blank()
    assert frozen(blank) == frozen(case.make())
    for block in blocks(case, d, (0, d.x.shape[case.axis])):
        blank.update(block)
    assert frozen(blank.state()) == frozen(full.state())


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "p"), [(40, 30), (70, 7), (7, 70), (1, 1)])
def test_memory_stays_under_its_projection(case: Case, dtype: str, n: int, p: int) -> None:
    d = data(25, n, p, dtype)
    length = d.x.shape[case.axis]
    accumulator = fold(case, d, (0, length // 2, length))
    partial = held(accumulator)
    assert partial <= accumulator.partial_nbytes((n, p), d.x.dtype.itemsize) + 256
    accumulator.merge(accumulator.copied()) if case.axis == 0 else accumulator.settle()
    assert held(accumulator) <= accumulator.projected_nbytes((n, p), d.x.dtype.itemsize) + 256


def held(value: Any) -> int:
    """Bytes of all arrays in an accumulator."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(held(v) for v in value.values())
    if isinstance(value, Accumulator):
        return held(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, Standardize):
        return sum(held(getattr(value, f.name)) for f in dataclasses.fields(value))
    return 0


@every
def test_an_emptied_one_begins_anew_and_leaves_what_was_merged(case: Case) -> None:
    """It may use the arrays of the one before, which a total has taken in."""
    d = data(26, 12, 5)
    length = d.x.shape[case.axis]
    first, second = blocks(case, d, (0, length // 2, length))
    used, fresh, total, kept = (case.make() for _ in range(4))
    used.update(first)
    fresh.update(second)
    total.merge(used)
    kept.merge(used.copied())
    again = used.emptied()
    again.update(second)
    assert frozen(again.state()) == frozen(fresh.state())
    assert frozen(total.state()) == frozen(kept.state())
