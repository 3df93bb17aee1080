"""``--weights``, ``--sample-weight`` and ``--remove``: arrays of the samples or features."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import streampca
from streampca.cli.options import STEPS
from streampca.errors import InvalidInputError
from streampca.matrix import AxisLabels, ChunkedMatrix
from streampca.models.side_data.cycles import CYCLES
from streampca.sources.side_data import is_file_of_values, read_side_data

BY_DATE = (*CYCLES, "trend")  # values of --remove that follow from dates
KEEP = "none"  # value of --remove in transform: nothing is removed


def side_data_options(parser: argparse.ArgumentParser) -> None:
    """Options for the weights of a fit, and for what it removes."""
    parser.add_argument(
        "--weights",
        action="append",
        metavar="coslat|FILE|NAME",
        help="multiply the features: coslat (the root of the cosine of the latitude), a file "
        "(.npy, .csv, .tsv, area.nc or area.nc:name) or a variable of the source; repeated, by all "
        "of these",
    )
    parser.add_argument(
        "--sample-weight",
        metavar="FILE|NAME",
        help="how often each sample counts: a file, or a variable of the source",
    )
    parser.add_argument(
        "--relative-weights",
        action="store_true",
        help="the sample weights only compare samples, as probabilities do: they are scaled to sum "
        "to the effective number of samples",
    )
    parser.add_argument(
        "--remove",
        action="append",
        metavar="month|hour|trend|FILE|NAME",
        help=f"project this out of the samples: a cycle ({', '.join(CYCLES)}) or trend in their "
        "dates, or covariates and batches in a file or variable (text makes a column for each "
        "level); may be repeated. "
        "For genotypes: a file of samples to leave out, as in PLINK",
    )


def weights_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """The values of --weights as models take them: None, "coslat", numbers, or several of these."""
    features = matrix.labels.features
    found = [
        one if one == "coslat" else _one("--weights", one, arguments, features)
        for one in arguments.weights or []
    ]
    return found if len(found) > 1 else next(iter(found), None)


def sample_weight_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """The value of --sample-weight for a matrix: None, or (samples,) numbers."""
    if arguments.sample_weight is None:
        if arguments.relative_weights:
            raise InvalidInputError("--relative-weights says what --sample-weight FILE means")
        return None
    found = _one("--sample-weight", arguments.sample_weight, arguments, matrix.labels.samples)
    return streampca.relative_weights(found) if arguments.relative_weights else found


def removal_wanted(arguments: argparse.Namespace, matrix: ChunkedMatrix) -> Any:
    """The value of --remove as models take it; False for --remove none."""
    values = arguments.remove or []
    if values == [KEEP]:
        return False
    samples = matrix.labels.samples
    found: list[Any] = []
    for value in values:
        found += [value] if value in BY_DATE else _read("--remove", value, arguments, samples)
    return found or None


def names_samples(arguments: argparse.Namespace) -> bool:
    """Whether --remove can only have PLINK's meaning: one file that is no table of numbers."""
    values = getattr(arguments, "remove", None)
    if isinstance(values, str):
        return True
    one = values[0] if values else ""
    return bool(one) and os.path.isfile(one) and one not in BY_DATE and not is_file_of_values(one)


def left_out_samples(arguments: argparse.Namespace) -> str | None:
    """The file of samples that --remove leaves out of a genotype fit.

    Raises InvalidInputError for options that such a fit does not take.
    """
    refuse_of_genotypes(arguments, ("weights", "sample_weight", "eofs", "anndata", *STEPS))
    values = arguments.remove
    if values is None or isinstance(values, str):
        return values
    if len(values) > 1 or values[0] in BY_DATE:
        raise InvalidInputError(
            f"--remove {' '.join(values)}: a genotype fit projects nothing out; expected one file "
            "of samples to leave out"
        )
    return str(values[0])


def _one(option: str, text: str, arguments: argparse.Namespace, axis: AxisLabels) -> Any:
    """One array of numbers; the only column of a table. Raises InvalidInputError."""
    found = _read(option, text, arguments, axis)
    if len(found) == 1:
        if np.asarray(found[0]).dtype.kind not in "biuf":
            raise InvalidInputError(f"{option} {text} holds no numbers")
        return found[0]
    raise InvalidInputError(
        f"{option} {text} has {len(found)} columns; expected one, and one named "
        f"{axis.dims[0]!r} with the names of the rows"
    )


def refuse_of_genotypes(arguments: argparse.Namespace, options: Sequence[str]) -> None:
    """Raise InvalidInputError if one of these options is used; genotypes do not take them."""
    for option in options:
        if getattr(arguments, option, None) not in (None, False):
            name = option.replace("_", "-")
            raise InvalidInputError(f"a genotype fit takes no --{name}; leave it out")


def _read(option: str, text: str, arguments: argparse.Namespace, axis: AxisLabels) -> list[Any]:
    first = str(arguments.source[0]) if arguments.source else ""
    return read_side_data(text, first, axis, option)
