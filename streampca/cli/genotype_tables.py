"""The text files of a genotype fit, in PLINK's layouts."""

from __future__ import annotations

import argparse
from typing import Any

import streampca
from streampca.cli.selection import Selection
from streampca.errors import InvalidInputError
from streampca.models.genotypes.numbers import frequency_column, observed_alleles
from streampca.store.tables import write_afreq, write_eigenval, write_eigenvec


def tables(arguments: argparse.Namespace) -> list[str]:
    """Paths of the text files that --out asks for."""
    if not arguments.out:
        if arguments.freq:
            raise InvalidInputError("--freq writes PREFIX.afreq: add --out PREFIX")
        return []
    pruned = [] if arguments.ld_r2 is None else [".prune.in"]
    counted = [".afreq"] if arguments.freq else []
    suffixes = (".eigenvec", ".eigenval", *counted, *pruned)
    return [f"{arguments.out}{suffix}" for suffix in suffixes]


def zarr_outputs(arguments: argparse.Namespace) -> list[str]:
    """Paths of the Zarr groups that the fit itself writes."""
    return [one for one in (arguments.loadings, arguments.relationship) if one]


def write_outputs(
    model: streampca.GenotypePCA, chosen: Selection, arguments: argparse.Namespace
) -> list[str]:
    """PLINK's tables, where --out asks for them. Returns the paths of all that was written."""
    result, may = model.result_, arguments.overwrite
    for path in (written := tables(arguments)):
        if path.endswith(".eigenvec"):
            kind = arguments.eigenvec_values
            values = model.eigenvectors_ if kind == "eigenvectors" else model.scores_
            columns = identifiers(result.labels.samples)
            if result.fitted is not None:
                columns.append(("FITTED", result.fitted.astype(int)))
            write_eigenvec(path, columns, values, kind, may)
        elif path.endswith(".eigenval"):
            write_eigenval(path, model.eigenvalues_, may)
        elif path.endswith(".afreq"):
            counted = (frequency_column(result), observed_alleles(result))
            write_afreq(path, result.labels.features, *counted, may)
        elif chosen.pruning is not None:
            chosen.pruning.write(path, may)
    return [*written, *zarr_outputs(arguments)]


def identifiers(samples: Any) -> list[tuple[str, Any]]:
    """FID and IID columns; IID alone where there are no families, numbers from 1 without names."""
    if "family" in samples.extra:
        return [("FID", samples.extra["family"]), ("IID", samples.extra["individual"])]
    if not samples.named:
        return [("IID", range(1, len(samples) + 1))]
    return [("IID", [name.replace(" ", "_") for name in samples.names()])]
