"""The list of all accumulators: to add one, add a row to ``CASES``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from law_data import Data, Values
from law_oracles import (
    RIDGES,
    oracle_alternating,
    oracle_biased,
    oracle_cross,
    oracle_cross_moments,
    oracle_directions,
    oracle_distances,
    oracle_feature_posterior,
    oracle_filled,
    oracle_gram,
    oracle_latent_equations,
    oracle_moments,
    oracle_nearest,
    oracle_projection,
    oracle_reconstruction,
    oracle_row_information,
    oracle_row_spread,
    oracle_scatter,
    oracle_step,
    oracle_truncated,
    oracle_two_way,
    read_alternating,
    read_biased,
    read_cross_moments,
    read_directions,
    read_distances,
    read_feature_posterior,
    read_filled,
    read_gram,
    read_latent_equations,
    read_moments,
    read_projection,
    read_row_information,
    read_scatter,
    read_step,
    read_truncated,
    read_two_way,
)

from streampca.accumulators import (
    Accumulator,
    AlternatingStep,
    CrossMoments,
    CrossProduct,
    FeatureDistances,
    FeaturePosterior,
    FeatureProjection,
    FilledStep,
    FoldScatter,
    Gram,
    LatentEquations,
    LeadingDirections,
    MeanImputedScatter,
    Moments,
    NearestDistances,
    Reconstruction,
    RFactor,
    RowInformation,
    RowMissing,
    RowSpread,
    Scatter,
    SubspaceStep,
    TruncatedFactor,
    TwoWayStep,
)
from streampca.accumulators.grouped import ScaledGram
from streampca.matrix import Block, Labels, Standardize


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


def oracle_scaled_gram(d: Data) -> Values:
    z = d.filled(d.operands["center"], d.operands["scale"])
    return {"gram": (z @ z.T, 1.0 + np.sum(z**2))}


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
    scatter_case("FoldScatter", FoldScatter, True, holes="refuse"),
    scatter_case("MeanImputedScatter", MeanImputedScatter, True),
    Case(
        "ScaledGram",
        ScaledGram,
        lambda a: {"gram": a.gram()},
        oracle_scaled_gram,
        axis=1,
        holes="refuse",
    ),
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
        "FeatureDistances",
        lambda: FeatureDistances(scale="scale"),
        read_distances,
        oracle_distances,
        axis=1,
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
    Case(
        "AlternatingStep-biases",
        lambda: AlternatingStep(streamed=0, ranks=(0,), ridges=(0.0,), biases=RIDGES[:1]),
        read_biased,
        oracle_biased,
    ),
    Case(
        "RowSpread",
        RowSpread,
        lambda a: a.sums()._asdict(),
        oracle_row_spread,
        by_row=("rows", "cells", "cells_squared", "mean", "between"),
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
        "NearestDistances",
        lambda: NearestDistances(nearest=2, m=3),
        lambda a: {"squares": a.nearest_squares()},
        oracle_nearest,
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
