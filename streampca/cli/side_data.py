"""``--weights``, ``--sample-weight`` and ``--remove``: what stands beside a matrix."""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.sources.side_data import is_file_of_values, read_side_data

WORDS = ("month", "season", "trend")
KEEP = "none"  # of --remove in transform: nothing is removed


def side_data_options(parser: argparse.ArgumentParser) -> None:
    """Weights and removals of a fit."""
    parser.add_argument(
        "--weights",
        metavar="coslat|FILE|NAME",
        help="multiply the features: coslat (the root of the cosine of the latitude), a file "
        "(.npy, .csv, .tsv, area.nc or area.nc:name) or a variable of the source",
    )
    parser.add_argument(
        "--sample-weight",
        metavar="FILE|NAME",
        help="how often each sample counts: a file, or a variable of the source",
    )
    parser.add_argument(
        "--remove",
        action="append",
        metavar="month|season|trend|FILE|NAME",
        help="project this out of the samples: a cycle or trend in their dates, or covariates and "
        "batches in a file or variable (text makes a column for each level); may be repeated. "
        "Of genotypes: a file of samples to leave out, as in PLINK",
    )


def weights_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """What --weights says of the features of a matrix."""
    if arguments.weights in (None, "coslat"):
        return arguments.weights
    return _one("--weights", arguments.weights, arguments, matrix.labels.features)


def sample_weight_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """What --sample-weight says."""
    if arguments.sample_weight is None:
        return None
    return _one("--sample-weight", arguments.sample_weight, arguments, matrix.labels.samples)


def removal_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """What --remove says, as the models take it; False for --remove none."""
    said = arguments.remove or []
    if said == [KEEP]:
        return False
    samples = matrix.labels.samples
    found: list[Any] = []
    for one in said:
        found += [one] if one in WORDS else _read("--remove", one, arguments, samples)
    return found or None


def names_samples(arguments: argparse.Namespace) -> bool:
    """Whether --remove can only be PLINK's: one file that is no table of numbers."""
    said = getattr(arguments, "remove", None)
    if isinstance(said, str):
        return True
    one = said[0] if said else ""
    return bool(one) and os.path.isfile(one) and one not in WORDS and not is_file_of_values(one)


def left_out_samples(arguments: argparse.Namespace) -> str | None:
    """The file of samples that --remove leaves out of a genotype fit. Refuses what it does not
    take."""
    for option in ("weights", "sample_weight", "eofs", "anndata"):
        if getattr(arguments, option, None) is not None:
            name = option.replace("_", "-")
            raise InvalidInputError(f"a genotype fit takes no --{name}; leave it out")
    said = arguments.remove
    if said is None or isinstance(said, str):
        return said
    if len(said) > 1 or said[0] in WORDS:
        raise InvalidInputError(
            f"--remove {' '.join(said)}: a genotype fit projects nothing out; expected one file of "
            "samples to leave out"
        )
    return str(said[0])


def _one(option: str, text: str, arguments: argparse.Namespace, axis: AxisLabels) -> Any:
    """One array; of a table the only column."""
    found = _read(option, text, arguments, axis)
    if len(found) == 1:
        if np.asarray(found[0]).dtype.kind not in "biuf":
            raise InvalidInputError(f"{option} {text} holds no numbers")
        return found[0]
    raise InvalidInputError(
        f"{option} {text} has {len(found)} columns; expected one, beside one named "
        f"{axis.dims[0]!r} with the names of the rows"
    )


def _read(option: str, text: str, arguments: argparse.Namespace, axis: AxisLabels) -> list[Any]:
    first = str(arguments.source[0]) if arguments.source else ""
    return read_side_data(text, first, axis, option)
