"""``streampca embed``: filter, components, layout."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.genotypes import check_missing
from streampca.cli.options import (
    STEPS,
    counts_options,
    files_read,
    open_source,
    prepared_counts,
    print_answer,
    print_fit,
    printing_options,
    running_options,
    settings_of_run,
    source_options,
)
from streampca.cli.outputs import check_outputs
from streampca.cli.pictures import LABELS, PICTURES, read_labels, write_picture
from streampca.cli.side_data import refuse_of_genotypes
from streampca.errors import InvalidInputError
from streampca.matrix import ALLELE_SCALES, SCALES
from streampca.store.bundle import whole_file


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["embed"]
    one.set_defaults(run=run_embed)
    one.add_argument("source", nargs="+", help="as for fit")
    source_options(one)
    _filter_options(one)
    _layout_options(one)
    counts_options(one)
    one.add_argument("-o", "--output", metavar="ZARR", help="write the (n, 2) coordinates here")
    one.add_argument("--plot", metavar="HTML|PNG|PDF|SVG", help="draw the picture here")
    one.add_argument("--labels", metavar="FILE", help=LABELS)
    one.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    one.add_argument("--plan", action="store_true", help="print what would be done; reads no data")
    printing_options(one)
    running_options(one)


def _filter_options(one: argparse.ArgumentParser) -> None:
    """What enters the layout."""
    one.add_argument(
        "--filter",
        nargs="+",
        metavar="NAME:X",
        help="variance:2000 or dispersion:2000, the features with the largest; missing:0.05, at "
        "most that share of missing cells; of genotypes maf:0.01 and ld:0.2",
    )
    one.add_argument(
        "-k", "--n-components", type=int, metavar="K", help="default 50; of genotypes 20"
    )
    one.add_argument(
        "--scale",
        choices=[s or "none" for s in SCALES],
        default="none",
        help="divide columns; hwe and eigensoft make it a genotype PCA",
    )
    one.add_argument(
        "--missing",
        choices=("raise", "mean", "impute"),
        help="treatment of missing cells, as of fit (default raise; genotypes: always the mean of "
        "the variant); impute: rows are scored by what they observe",
    )


def _layout_options(one: argparse.ArgumentParser) -> None:
    """How rows are laid out."""
    one.add_argument(
        "--method",
        choices=("umap", "tsne", "pacmap"),
        default="umap",
        help="by umap-learn, openTSNE or PaCMAP",
    )
    one.add_argument(
        "--n-neighbors",
        type=int,
        metavar="N",
        help="rows that count as near (umap 15, pacmap 10): few show detail, many the whole",
    )
    one.add_argument(
        "--min-dist", type=float, metavar="X", help="how densely umap may pack points (0.1)"
    )
    one.add_argument(
        "--perplexity",
        type=float,
        metavar="X",
        help="about how many rows count as near for tsne (30)",
    )
    one.add_argument(
        "--landmarks",
        type=int,
        metavar="N",
        help="lay out so many rows and place the others among them (default: all up to 100,000, "
        "or what --memory-limit allows)",
    )
    one.add_argument(
        "--queries", type=int, default=1000, metavar="N", help="rows by which the picture is judged"
    )
    one.add_argument("--random-state", type=int, default=0, metavar="SEED")


def run_embed(arguments: argparse.Namespace) -> int:
    """``streampca embed``."""
    _check(arguments)
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    matrix = open_source(arguments)
    options = _options(arguments)
    if not arguments.plan:
        matrix = prepared_counts(arguments, matrix)
    if arguments.plan or (arguments.verbose and not arguments.json):
        from streampca.embedding import plan_embedding

        plan = plan_embedding(matrix, **options)
        print_answer(arguments, {**vars(plan), "fit": plan.fit.to_dict()}, f"{plan}\n")
    if arguments.plan:
        if arguments.highly_variable is not None and not arguments.json:
            print("of all features: --highly-variable reads the matrix before it chooses")
        return 0
    found = streampca.embed(matrix, n_queries=arguments.queries, **options)
    if arguments.output:
        found.save(arguments.output, overwrite=arguments.overwrite)
    if arguments.plot:
        _draw(found, Path(arguments.plot), labels)
    written = [one for one in (arguments.output, arguments.plot) if one]
    print_fit(arguments, lambda: _summary(found) | {"written": written}, str(found), *written)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    check_outputs(
        arrays=[arguments.output],
        tables=[arguments.plot],
        sources=files_read(arguments),
        overwrite=arguments.overwrite,
    )
    known = (".html", *PICTURES)
    if arguments.plot and Path(arguments.plot).suffix.lower() not in known:
        raise InvalidInputError(
            f"--plot {arguments.plot}: expected a name that ends in .html, .png, .pdf or .svg"
        )


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    scale = None if arguments.scale == "none" else arguments.scale
    k = arguments.n_components
    model: Any = None
    if scale in ALLELE_SCALES:
        check_missing(arguments.missing)
        refuse_of_genotypes(arguments, STEPS)
        every = streampca.VariantFilter(chromosomes="all")
        model = streampca.GenotypePCA(20 if k is None else k, scale=scale, variants=every)
    elif scale is not None or arguments.missing is not None:
        missing = arguments.missing or "raise"
        model = streampca.PCA(50 if k is None else k, scale=scale, missing=missing)
    return {
        "filter": arguments.filter,
        "n_components": None if model is not None else k,
        "model": model,
        "method": arguments.method,
        "n_neighbors": arguments.n_neighbors,
        "min_dist": arguments.min_dist,
        "perplexity": arguments.perplexity,
        "landmarks": arguments.landmarks,
        "random_state": arguments.random_state,
        **settings_of_run(arguments),
    }


def _draw(found: Any, path: Path, labels: Any) -> None:
    from streampca import plots

    if path.suffix.lower() == ".html":
        with whole_file(path) as file:
            plots.embedding_page(found, file.name, labels=labels)
    else:
        write_picture(plots.embedding(found, labels=labels).get_figure(), path)


def _summary(found: Any) -> dict[str, Any]:
    return {
        "samples": len(found.coordinates),
        "features": found.filtered.matrix.shape[1],
        "filters": [list(step) for step in found.filtered.steps],
        "components": found.scores.shape[1],
        "method": found.method,
        "landmarks": len(found.landmarks),
        "seed": found.seed,
        "quality": asdict(found.quality),
    }
