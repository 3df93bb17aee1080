"""The command line: arguments in, words out."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streampca
from streampca.errors import (
    InvalidInputError,
    MemoryLimitError,
    MissingDependencyError,
    SourceError,
    StreamPCAError,
)
from streampca.passes import PassCost, Plan, size
from streampca.passes.machine import peak_nbytes
from streampca.passes.progress import TerminalProgress

# sysexits.h: 65 unusable data or settings, 66 no such input, 69 not enough memory
EXIT = (
    (MemoryLimitError, 69),
    (SourceError, 66),
    (MissingDependencyError, 69),
    (StreamPCAError, 65),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``streampca``. Returns the exit code."""
    arguments = build_parser().parse_args(argv)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        return int(arguments.run(arguments) or 0)
    except StreamPCAError as error:
        print(f"streampca: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", []):
            print(f"  {note}", file=sys.stderr)
        return next(code for kind, code in EXIT if isinstance(error, kind))
    except KeyboardInterrupt:
        print("streampca: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _show_warning(message: Any, category: Any, *_: Any) -> None:
    print(f"streampca: {category.__name__}: {message}", file=sys.stderr)


# -- commands -----------------------------------------------------------------------------------


def run_plan(arguments: argparse.Namespace) -> int:
    """``streampca plan``: what a fit would do."""
    plan = _model(arguments).plan(_open(arguments), dim=None)
    print(plan.to_json() if arguments.json else plan)
    return 0


def run_fit(arguments: argparse.Namespace) -> int:
    """``streampca fit``: fit, report, save."""
    if arguments.output and Path(arguments.output).exists() and not arguments.overwrite:
        raise InvalidInputError(f"{arguments.output} exists already; add --overwrite to replace it")
    if arguments.scores and Path(arguments.scores).exists() and not arguments.overwrite:
        raise InvalidInputError(f"{arguments.scores} exists already; add --overwrite to replace it")
    matrix = _open(arguments)
    model = _model(arguments)
    if not (arguments.json or arguments.quiet):
        print(model.plan(matrix), end="\n\n")
    model.fit(matrix)
    if arguments.output:
        model.save(arguments.output)
    if arguments.scores:
        _write_scores(model, matrix, arguments)
    if arguments.json:
        print(json.dumps(_summary(model), indent=1))
    elif not arguments.quiet:
        print(_report(model))
        if arguments.output:
            print(f"model saved to {arguments.output}")
    return 0


def _write_scores(model: Any, matrix: Any, arguments: argparse.Namespace) -> None:
    scores = model.result_.scores
    if scores is None:
        model.transform(matrix, out=arguments.scores, overwrite=arguments.overwrite)
        return
    from streampca.store import ZarrSink

    n, k = scores.shape
    sink = ZarrSink(arguments.scores, n, k, overwrite=arguments.overwrite)
    sink.write(0, scores)
    sink.finish()


def run_transform(arguments: argparse.Namespace) -> int:
    """``streampca transform``: scores of new rows on a saved model."""
    model = streampca.load(arguments.model)
    model.set_params(progress=_progress(arguments), scheduler=arguments.scheduler)
    if arguments.memory_limit:
        model.set_params(memory_limit=arguments.memory_limit)
    scores = model.transform(_open(arguments), out=arguments.output, overwrite=arguments.overwrite)
    text = {"rows": scores.shape[0], "components": scores.shape[1], "output": arguments.output}
    print(
        json.dumps(text)
        if arguments.json
        else f"{text['rows']} x {text['components']} scores written to {arguments.output}"
    )
    return 0


def run_info(arguments: argparse.Namespace) -> int:
    """``streampca info``: what a model or a source is."""
    from streampca.store import is_bundle

    if is_bundle(arguments.what):
        model = streampca.load(arguments.what)
        print(json.dumps(_summary(model), indent=1) if arguments.json else _describe(model.result_))
        return 0
    matrix = _open(arguments)
    n, p = matrix.shape
    text = {"samples": n, "features": p, "dtype": str(matrix.dtype), "bytes": matrix.nbytes}
    for axis, name in enumerate(("sample", "feature")):
        edges = matrix.chunk_edges(axis)
        text[f"chunks along {name}s"] = None if edges is None else len(edges) - 1
    print(
        json.dumps(text)
        if arguments.json
        else "\n".join(f"{key:<22} {size(v) if key == 'bytes' else v}" for key, v in text.items())
    )
    return 0


def run_plot(arguments: argparse.Namespace) -> int:
    """``streampca plot``: a picture of a saved model."""
    result = streampca.load(arguments.model).result_
    labels = None if arguments.labels is None else Path(arguments.labels).read_text().split("\n")
    if labels is not None:
        labels = [line.strip() for line in labels if line.strip()]
    options: dict[str, Any] = {}
    if arguments.kind == "scores":
        options = {"labels": labels, "components": tuple(arguments.components)}
        if arguments.scores:
            matrix = streampca.open(arguments.scores)
            options["scores"] = matrix.read(0, 0, matrix.shape[0])
    if arguments.kind == "loadings":
        options = {"component": arguments.components[0]}
    _draw(arguments.kind, result, Path(arguments.output), **options)
    print(f"{arguments.kind} drawn to {arguments.output}")
    return 0


def run_demo(arguments: argparse.Namespace) -> int:
    """``streampca demo``: known data, analysed and checked."""
    from streampca.jobs import digits_demo, genotype_demo
    from streampca.sources.simulate import GenotypeRecipe

    folder = Path(arguments.output)
    progress = _progress(arguments)
    if arguments.data == "digits":
        report = digits_demo(progress=progress)
    else:
        recipe = GenotypeRecipe(arguments.samples, arguments.variants, seed=arguments.seed)
        if not arguments.json:
            cells = recipe.samples * recipe.variants
            print(
                f"Writing {folder / 'genotypes.zarr'}: {recipe.samples} samples x "
                f"{recipe.variants} variants of {recipe.populations} populations, "
                f"{recipe.missing:.1%} missing ({size(cells)} as int8)",
                flush=True,
            )
        report = genotype_demo(
            folder,
            recipe,
            memory_limit=arguments.memory_limit,
            progress=progress,
            writing=_writing if progress else None,
        )
    folder.mkdir(parents=True, exist_ok=True)
    report.model.save(folder / "model")
    if arguments.json:
        print(json.dumps({**_summary(report.model), "check": report.check}, indent=1))
        return 0
    print(f"\n{report.model.plan_}\n\n{_report(report.model)}\n\ncheck: {report.check}")
    print(f"model: {folder / 'model'}   (streampca info {folder / 'model'})")
    _demo_pictures(report, folder)
    return 0


def _demo_pictures(report: Any, folder: Path) -> None:
    scores = report.model.result_.scores
    if scores is None:
        scores = report.model.transform(_digits())
    try:
        _draw("scree", report.model.result_, folder / "scree.png")
        _draw(
            "scores",
            report.model.result_,
            folder / "scores.png",
            scores=scores,
            labels=report.labels,
        )
    except MissingDependencyError as error:
        print(f"pictures: {error}")
        return
    print(f"pictures: {folder / 'scores.png'}, {folder / 'scree.png'}")


def _digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits().data


# -- words ----------------------------------------------------------------------------------------


LEGEND = (
    "+-: bound on the variance's error.  angle: bound on the angle to the true component, in\n"
    "radians; 1.6 = its neighbours are as large, so that only their common plane is determined."
)


def _report(model: Any) -> str:
    """The spectrum, and what the fit cost against its plan."""
    plan: Plan = model.plan_
    costs: list[PassCost] = model.cost_
    seconds = sum(c.seconds for c in costs)
    nbytes = sum(c.nbytes for c in costs)
    lines = [model.result_.table(), LEGEND, "", f"{'':<14}{'planned':>12}{'measured':>12}"]
    rows = [
        ("passes", len(plan.passes), len(costs)),
        ("chunk reads", plan.reads, sum(c.reads for c in costs)),
        ("bytes read", size(plan.nbytes), size(nbytes)),
        ("peak memory", size(plan.peak_nbytes), size(peak_nbytes())),
    ]
    lines += [f"{name:<14}{planned:>12}{measured:>12}" for name, planned, measured in rows]
    lines.append(
        f"{'pass seconds':<14}{'':>12}{seconds:>12.1f}   "
        f"({nbytes / max(seconds, 1e-9) / 1e6:.0f} MB/s)"
    )
    return "\n".join(lines)


def _describe(result: Any) -> str:
    provenance = result.provenance
    lines = [str(result), ""]
    lines.append(f"solver     {result.plan.get('solver', '-')}: {result.plan.get('reason', '-')}")
    lines.append(
        f"settings   {json.dumps({k: v for k, v in result.settings.items() if v is not None})}"
    )
    if len(result.dropped) or len(result.constant):
        lines.append(
            f"features   {len(result.dropped)} without observation, {len(result.constant)} constant"
        )
    lines.append(
        f"source     {str(provenance.get('source', ''))[:16]}, "
        f"{provenance.get('reads', 0)} chunk reads, {provenance.get('seconds', 0):.1f} s"
    )
    versions = provenance.get("versions", {})
    lines.append("made with  " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    return "\n".join(lines)


def _summary(model: Any) -> dict[str, Any]:
    result = model.result_
    return {
        "method": result.method,
        "samples": result.n_samples,
        "features": result.n_features,
        "components": result.n_components,
        "solver": result.plan.get("solver"),
        "explained_variance": result.explained_variance.tolist(),
        "explained_variance_ratio": result.explained_variance_ratio.tolist(),
        "total_variance": result.total_variance,
        "rank": result.rank,
        "dropped_features": len(result.dropped),
        "constant_features": len(result.constant),
        "certificate": None if result.certificate is None else result.certificate.to_dict(),
        "planned": {k: result.plan.get(k) for k in ("reads", "bytes", "peak_bytes")},
        "measured": {
            k: result.provenance.get(k)
            for k in ("reads", "bytes", "stored_bytes", "peak_bytes", "seconds")
        },
    }


def _draw(kind: str, result: Any, path: Path, **options: Any) -> None:
    from streampca import plots

    figure = getattr(plots, kind)(result, **options).get_figure()
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _writing(done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[Kwriting {done}/{total} variants" + ("\n" if done == total else ""))
    sys.stderr.flush()


# -- arguments ------------------------------------------------------------------------------------


def _progress(arguments: argparse.Namespace) -> Any:
    quiet = arguments.json or getattr(arguments, "quiet", False) or not sys.stderr.isatty()
    return False if quiet else TerminalProgress()


def _open(arguments: argparse.Namespace) -> Any:
    source = getattr(arguments, "source", None) or arguments.what
    return streampca.open(
        source,
        variable=arguments.variable,
        dim=arguments.dim or None,
        missing_value=arguments.missing_value,
        missing_chunks=arguments.missing_chunks,
    )


def _model(arguments: argparse.Namespace) -> Any:
    return streampca.PCA(
        arguments.n_components,
        svd_solver=arguments.solver,
        center=not arguments.no_center,
        scale=arguments.scale,
        ddof=arguments.ddof,
        missing=arguments.missing,
        missing_value=arguments.missing_value,
        components=not arguments.no_components,
        memory_limit=arguments.memory_limit,
        scheduler=arguments.scheduler,
        progress=_progress(arguments),
        checkpoint=arguments.checkpoint,
    )


def _n_components(text: str) -> int | float | str | None:
    if text in ("all", "gap"):
        return None if text == "all" else "gap"
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number, a share such as 0.9, 'gap' or 'all'"
        ) from None


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser(
        prog="streampca", description="PCA of matrices that do not fit in memory."
    )
    parser.add_argument("--version", action="version", version=f"streampca {streampca.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for name, function, words in (
        ("plan", run_plan, "what a fit would do; reads no data"),
        ("fit", run_fit, "fit a PCA, report it, save it"),
    ):
        one = commands.add_parser(name, help=words, description=words)
        one.set_defaults(run=function)
        one.add_argument("source", help="Zarr array or group, .nc, .npy: path or URL")
        _source_options(one)
        _model_options(one)
        if name == "fit":
            one.add_argument("-o", "--output", metavar="MODEL", help="save the model here")
            one.add_argument(
                "--scores", metavar="ZARR", help="write the scores of all samples here"
            )
            one.add_argument("--overwrite", action="store_true", help="replace existing outputs")
            one.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")

    one = commands.add_parser("transform", help="scores of new rows on a saved model")
    one.set_defaults(run=run_transform)
    one.add_argument("model")
    one.add_argument("source")
    one.add_argument("-o", "--output", required=True, metavar="ZARR")
    one.add_argument("--overwrite", action="store_true")
    one.add_argument("--memory-limit", metavar="SIZE")
    one.add_argument("--scheduler", metavar="ADDRESS")
    _source_options(one)

    one = commands.add_parser("info", help="what a saved model or a source is")
    one.set_defaults(run=run_info)
    one.add_argument("what", metavar="MODEL|SOURCE")
    _source_options(one)

    one = commands.add_parser("plot", help="a picture of a saved model")
    one.set_defaults(run=run_plot)
    one.add_argument("model")
    one.add_argument("--kind", choices=("scree", "scores", "loadings"), default="scree")
    one.add_argument("-o", "--output", required=True, metavar="PNG|PDF|SVG")
    one.add_argument("--components", type=int, nargs="+", default=[1, 2], metavar="N")
    one.add_argument("--labels", metavar="FILE", help="one label per sample, one a line")
    one.add_argument("--scores", metavar="ZARR", help="scores to draw, where the model has none")

    one = commands.add_parser("demo", help="make data with known structure and analyse them")
    one.set_defaults(run=run_demo)
    one.add_argument("data", nargs="?", choices=("genotypes", "digits"), default="genotypes")
    one.add_argument("--samples", type=int, default=3192)
    one.add_argument("--variants", type=int, default=50_000, help="up to the full 500568")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--memory-limit", metavar="SIZE")
    one.add_argument("-o", "--output", default="streampca-demo", metavar="FOLDER")
    one.add_argument("--json", action="store_true")
    return parser


def _source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variable", help="which array of a group or file")
    parser.add_argument("--dim", nargs="+", help="sample dimension(s); the rest becomes features")
    parser.add_argument(
        "--missing-value", type=float, metavar="X", help="a number that means missing"
    )
    parser.add_argument("--missing-chunks", choices=("error", "fill"), default="error")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-k",
        "--n-components",
        type=_n_components,
        default=10,
        help="a number, a share such as 0.9, 'gap' or 'all' (default 10)",
    )
    parser.add_argument("--scale", choices=("std",), help="divide columns by their deviation")
    parser.add_argument("--no-center", action="store_true")
    parser.add_argument("--ddof", type=int, default=1)
    parser.add_argument("--missing", choices=("raise", "mean"), default="raise")
    parser.add_argument("--solver", default="auto", choices=("auto", "scatter", "tsqr", "gram"))
    parser.add_argument(
        "--no-components",
        action="store_true",
        help="scores and spectrum only: saves a pass on wide data",
    )
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="such as 512MiB: plan within, or refuse"
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler, tcp://host:port")
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="resume an interrupted pass from here"
    )


if __name__ == "__main__":
    sys.exit(main())
