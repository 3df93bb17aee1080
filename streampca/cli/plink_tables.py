"""The text files of a genotype fit, in PLINK's layouts."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

import streampca
from streampca.cli.king_tables import KingTables, king_wanted
from streampca.cli.selection import Selection
from streampca.errors import InvalidInputError
from streampca.genetics.genotype_result import used_variants
from streampca.genetics.tables import (
    allele_weights,
    eigensoft_eigenvalues,
    identifiers,
    write_acount,
    write_afreq,
    write_allele_weights,
    write_eigenval,
    write_eigenvec,
    write_smiss,
    write_vmiss,
)
from streampca.models.results.linear_result import COMPONENTS
from streampca.store import labelled_rows


def tables(arguments: argparse.Namespace) -> list[str]:
    """Paths of the text files that --out asks for."""
    endings = {
        "freq": (".afreq",),
        "missing_counts": (".smiss", ".vmiss"),
        "allele_wts": (".eigenvec.allele", ".acount"),
    }
    if arguments.pca_extract and arguments.ld_r2 is not None:
        raise InvalidInputError("--pca-extract and --ld-r2 both choose variants; leave one out")
    if not arguments.out:
        if king_wanted(arguments):
            raise InvalidInputError("tables of kinship begin with the prefix of --out: add --out x")
        if option := next((one for one in endings if getattr(arguments, one)), None):
            option, suffix = option.replace("_", "-"), endings[option][0]
            raise InvalidInputError(f"--{option} writes PREFIX{suffix}: add --out PREFIX")
        return []
    if arguments.allele_wts and (not arguments.components or arguments.ploidy != 2):
        option = "--ploidy" if arguments.components else "--no-components"
        raise InvalidInputError(
            f"--allele-wts needs components of diploid calls: leave out {option}"
        )
    pruned = [] if arguments.ld_r2 is None else [".prune.in"]
    more = [one for option, some in endings.items() if getattr(arguments, option) for one in some]
    ends = (".eigenvec", ".eigenval", *more, *pruned)
    king = KingTables.wanted(arguments, arguments.out, default=False).paths
    return [*(f"{arguments.out}{suffix}" for suffix in ends), *king]


def zarr_outputs(arguments: argparse.Namespace) -> list[str]:
    """Paths of the Zarr groups that the fit itself writes."""
    return [one for one in (arguments.loadings, arguments.relationship) if one]


def write_outputs(
    model: streampca.GenotypePCA, chosen: Selection, arguments: argparse.Namespace
) -> list[str]:
    """Write PLINK's tables if --out asks for them. Returns all written paths."""
    result, may = model.result_, arguments.overwrite
    variants, who = result.labels.features, identifiers(result.labels.samples)
    counted = (result.frequency_column, result.observed_alleles)
    if model.kinship_ is not None:
        king = KingTables.wanted(arguments, arguments.out, default=False)
        king.write(model.kinship_, arguments.out, may)
    for path in (written := tables(arguments)):
        if path.endswith(".eigenvec"):
            unit = arguments.eigenvec_values == "eigenvectors"
            values = model.eigenvectors_ if unit else model.scores_
            columns = list(who)
            if result.fitted is not None or arguments.unrelated is not None:
                fitted = result.fitted if result.fitted is not None else np.ones(len(values), bool)
                columns.append(("FITTED", fitted.astype(int)))
            write_eigenvec(path, columns, values, may)
        elif path.endswith(".eigenval"):
            plain = arguments.eigenval_values == "plink"
            values = model.eigenvalues_ if plain else eigensoft_eigenvalues(result)
            write_eigenval(path, values, may)
        elif path.endswith(".afreq"):
            write_afreq(path, variants, *counted, may)
        elif path.endswith(".acount"):
            write_acount(path, variants, *counted, may)
        elif path.endswith(".smiss"):
            write_smiss(path, who, result.missing_by_sample, result.n_features, may)
        elif path.endswith(".vmiss"):
            lost = np.zeros(len(variants), int) if result.missing is None else result.missing
            write_vmiss(path, variants, lost, result.n_samples, may)
        elif path.endswith(".allele"):
            streamed = result.streamed_to
            loadings = (
                result.require_components().T
                if streamed is None
                else (labelled_rows(streamed, COMPONENTS))
            )
            weights = partial(allele_weights, result, columns=loadings)
            used = used_variants(result)
            write_allele_weights(path, variants, used, weights, result.n_components, may)
        elif path.endswith(".prune.in") and chosen.pruning is not None:
            chosen.pruning.write(path, may)
    return [*written, *zarr_outputs(arguments)]
