"""``streampca certify``: whether components that anyone computed are those of a source."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import streampca
from streampca.certification.certify import MISSING
from streampca.certification.claims import KINDS, Claim
from streampca.certification.conventions import AUTO
from streampca.certification.report import TOL
from streampca.cli.commands import Parser
from streampca.cli.genotypes import filter_options, is_genotypes
from streampca.cli.options import (
    open_source,
    print_answer,
    running_options,
    settings_of_run,
    source_options,
)
from streampca.cli.selection import choose
from streampca.cli.side_data import sample_weight_wanted, weights_wanted
from streampca.genetics.filters import VariantFilter
from streampca.matrix import SCALES, AxisLabels
from streampca.sources.sparse.anndata import stored_scores

REFUSED = 65  # exit code where a component is not certified
TABLES = (".eigenvec", ".evec", ".tsv", ".txt", ".sscore")
ARRAYS = (".npy", ".zarr")


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of ``certify``."""
    one = parsers["certify"]
    one.set_defaults(run=run_certify, relative_weights=False)
    one.add_argument("source", nargs="*")
    one.add_argument(
        "--eigenvec",
        "--components",
        dest="components",
        required=True,
        metavar="FILE",
        help="an .eigenvec of PLINK 2 or .evec of smartpca, whose samples are found by their ids; "
        "scores (n x k) or loadings (k x p) in .npy or .zarr; scores in cells.h5ad (X_pca) or "
        "cells.h5ad:NAME; or a saved model",
    )
    one.add_argument("--kind", choices=KINDS, help="of an array, where its shape does not say it")
    one.add_argument(
        "--center",
        action=argparse.BooleanOptionalAction,
        default=AUTO,
        help="whether the mean was subtracted (default: what fits; that it was not has to be said)",
    )
    one.add_argument(
        "--scale",
        choices=[AUTO, *(name or "none" for name in SCALES)],
        default=AUTO,
        help="what the columns were divided by (default: what fits best)",
    )
    one.add_argument(
        "--missing", choices=MISSING, default=AUTO, help="pairwise: plink2 --pca (default: fits)"
    )
    one.add_argument("--weights", action="append", metavar="coslat|FILE|NAME", help="as of fit")
    one.add_argument("--sample-weight", metavar="FILE|NAME", help="how often each sample counts")
    one.add_argument(
        "--tol", type=float, default=TOL, metavar="RADIANS", help=f"accepted angle ({TOL:g})"
    )
    one.add_argument(
        "--passes",
        type=int,
        default=1,
        metavar="N",
        help="more narrow what a missed direction can hold; each reads the source again",
    )
    group = one.add_argument_group("genotypes")
    filter_options(group)
    group.add_argument("--remove", metavar="FILE", help="samples to leave out")
    one.set_defaults(only_genotypes={one.dest: one.default for one in group._group_actions})
    running_options(one)
    source_options(one)


def run_certify(arguments: argparse.Namespace) -> int:
    """``streampca certify``: 0 where all components are certified."""
    components = _components(arguments.components)
    matrix = open_source(arguments)
    settings: dict[str, Any] = {"variants": VariantFilter(chromosomes="all")}
    if is_genotypes(arguments, matrix):
        matrix = choose(arguments, matrix).matrix
    else:
        settings["weights"] = weights_wanted(arguments, matrix)
        settings["sample_weight"] = sample_weight_wanted(arguments, matrix)
    found = streampca.certify(
        components,
        matrix,
        kind=arguments.kind,
        center=arguments.center,
        scale=None if arguments.scale == "none" else arguments.scale,
        missing=arguments.missing,
        tol=arguments.tol,
        passes=arguments.passes,
        **settings,
        **settings_of_run(arguments),
    )
    print_answer(arguments, found.to_dict(), found)
    return 0 if found.certified else REFUSED


def _components(path: str) -> Any:
    """What is in a file, or a saved model. Raises InvalidInputError, SourceError."""
    if path.endswith(TABLES):
        return path
    if path.endswith(ARRAYS):
        matrix = streampca.open(path)
        return matrix.read(0, 0, matrix.shape[0])
    stored, _, name = path.rpartition(":")
    for place, column in ((path, None), (stored, name)):
        if place.endswith(".h5ad") and (found := stored_scores(place, column)) is not None:
            names, scores = found
            return Claim(
                scores=np.asarray(scores), samples=AxisLabels.plain("obs", len(scores), names)
            )
    return streampca.load(path)
