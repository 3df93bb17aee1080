"""All commands, their parser, and the entry point. The module of a command loads on first use."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import streampca
from streampca.cli.failures import KINDS, TRACEBACK, UsageExit, failed
from streampca.cli.messages import as_options
from streampca.cli.plink_options import as_ours, plink_answer
from streampca.cli.run_options import OUTPUTS, begin_logs, leaves, noted, run_options
from streampca.cli.terminal import YELLOW, announce, printable_output
from streampca.errors import FAULT, TERMINATED, USAGE, InvalidInputError, exit_code, nearest
from streampca.paths import full_disk_noted
from streampca.run_context import in_run

LOGGER = logging.getLogger(__name__)
COMMANDS = {  # command -> (its module, what it does)
    "plan": ("fit", "what a fit would do; reads no data"),
    "fit": ("fit", "fit a PCA or another model, report it, save it"),
    "transform": ("fit", "scores of new rows on a saved model"),
    "monitor": ("monitor", "rows that a saved PCA does not expect: T^2, prediction errors, limits"),
    "info": ("info", "describe a saved model or a source"),
    "prune": ("genotypes", "variants in approximate linkage equilibrium"),
    "relate": ("relate", "kinship (KING) or relationship (GRM) of all pairs of samples"),
    "certify": ("certify", "whether components that anyone computed are those of a source"),
    "project": ("genotypes", "new samples onto a saved genotype model"),
    "convert": ("genotypes", "copy genotypes to the Zarr layout read fastest"),
    "impute": (
        "impute",
        "complete a matrix by a low-rank model; missing cells are NaN, a code, or not stored",
    ),
    "lsa": ("lsa", "latent semantic analysis: fit to texts, search, similar documents and terms"),
    "recommend": ("recommend", "items for users, from a completion of ratings"),
    "embed": ("embed", "filter features, fit a PCA, lay the rows out by UMAP, t-SNE or PaCMAP"),
    "plot": ("pictures", "a picture of a saved model"),
    "report": ("pictures", "everything about a saved model as one HTML page that needs no network"),
    "baselines": (
        "pictures",
        "R^2 of PCA, of random projections and of chosen features: a picture",
    ),
    "bootstrap": ("bootstrap", "how sure the sample makes the components of a saved model"),
    "demo": ("demo", "make data with known structure and analyse them"),
    "models": ("models", "list, check, promote and remove stored versions"),
    "refresh": ("config", "update a model store from its source, by a job file"),
    "status": ("status", "what a job serves, how old that is, and whether anyone should look"),
    "config": ("config", "check a job file, or print the schema of one"),
    "calibrate": ("calibrate", "measure the speeds of this machine, for plans with --rates"),
    "completion": ("completion", "what bash, zsh or fish offers after Tab"),
}
EXAMPLES = {  # command -> lines of its --help
    "plan": ["plan matrix.zarr -k 20 --memory-limit 512MiB", "plan cells.h5ad -k 50 --verbose"],
    "fit": [
        "fit matrix.zarr -k 20 --scale std -o model --scores scores.zarr",
        "fit x.bed --mind 0.05 --geno 0.05 --maf 0.01 --ld-r2 0.2 -k 10 --out tables/x",
        "fit climate.nc --variable sst --weights coslat --remove month -k 5 --eofs eofs.nc",
        "fit cells.h5ad --normalize-total 1e4 --log1p --highly-variable 2000 -k 50 --anndata",
        "fit matrix.zarr --model ppca -k 5 -o ppca",
    ],
    "transform": ["transform model new.zarr -o new-scores.zarr"],
    "monitor": [
        "monitor model new.zarr -o distances.csv",
        "monitor model matrix.zarr --rows fit --reference matrix.zarr --json",
    ],
    "info": ["info model", "info matrix.zarr"],
    "prune": ["prune x.bed --ld-r2 0.2 -o x.prune.in"],
    "relate": [
        "relate x.bed -o x --king-cutoff 0.0884 --make-king-table",
        "relate x.bed -o x --make-grm-bin",
    ],
    "certify": [
        "certify x.bed --eigenvec plink.eigenvec",
        "certify matrix.zarr --components scores.npy --scale std --passes 3",
    ],
    "project": ["project model new.bed -o new.tsv --shrinkage oadp"],
    "convert": ["convert x.bed -o x.zarr"],
    "impute": [
        "impute ratings.csv --user userId --item movieId --rating rating --test 0.1 -o model",
        "impute holes.zarr --rank 2 4 8 --validation 0.05 -o model",
    ],
    "recommend": [
        "recommend model 17 -n 10",
        "recommend model --similar 2571",
        "recommend model --predict pairs.csv",
    ],
    "lsa": [
        "lsa fit articles/ -k 100 --stop-words english --min-df 2 -o model",
        'lsa search model "heart attack" -n 5',
        "lsa similar model --term infarction",
    ],
    "plot": [
        "plot model --kind loadings -o loadings.png",
        "plot model --kind texts -o texts.png",
        "plot model --kind images --images faces/ -o eigenfaces.png",
        "plot model --kind map --components 1 2 -o maps.pdf",
        "plot model --scores new.tsv --panel pops.txt -o projected.png",
    ],
    "report": ["report model -o report.html", "report model --panel pops.txt"],
    "baselines": [
        "baselines matrix.zarr -o baselines.png",
        "baselines matrix.zarr -k 20 --reconstruction regression -o baselines.pdf",
    ],
    "embed": [
        "embed x.zarr --filter variance:2000 -k 50 --method umap -o embedding.zarr --plot map.html",
        "embed cells.h5ad --normalize-total 1e4 --log1p --highly-variable 2000 "
        "--labels cells.h5ad:batch --plot umap.png",
        "embed x.bed --filter maf:0.01 ld:0.2 --scale hwe -k 20 -o embedding.zarr",
    ],
    "bootstrap": [
        "bootstrap model matrix.zarr -k 10",
        "bootstrap model climate.nc --blocks 24 --plot scree.png",
        "bootstrap model --method jackknife --features chromosome",
    ],
    "demo": ["demo"],
    "models": [
        "models list models/nightly",
        "models rollback models/nightly",
        "models alias models/nightly champion 3",
        "models gc models/nightly --dry-run",
    ],
    "refresh": ["refresh configs/nightly.yaml --dry-run"],
    "status": ["status configs/nightly.yaml", "status --all configs/ --json"],
    "config": ["config check configs/nightly.yaml"],
    "calibrate": ["calibrate -o rates.json"],
    "completion": ["completion bash"],
}
WELCOME = """streampca: principal components of matrices that do not fit in memory

  streampca demo                           see it work on data that it makes
  streampca plan matrix.zarr -k 20         what a fit would read and take; reads nothing
  streampca fit matrix.zarr -k 20 -o model fit, report, save
  streampca info model                     describe a saved model, or a source
  streampca plot model -o scree.png        draw it

'streampca --help' lists all commands, 'streampca COMMAND --help' its options and examples."""
OF_ALL = ("config", "completion")  # the commands that know the options of all others


class Parser(argparse.ArgumentParser):
    """A parser whose errors name what is nearest; ``raises`` makes them InvalidInputError."""

    raises = False
    commands: dict[str, Parser]  # of the whole command line, by name
    named: Parser | None = None  # the one of them that the command line names

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; of a word that is unknown the nearest option is named, of an option of
        PLINK what it is here."""
        own = {} if self.named is None else self.named._option_string_actions
        if "--bfile" in own and self.named is not None:
            args = as_ours(sys.argv[1:] if args is None else args)
            if said := plink_answer(args, own):
                self.named.error(said)
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self.named or self
            wrong = next((one.split("=")[0] for one in unknown if one.startswith("--")), "")
            meant = _taken_by(wrong, ("fit", "project")) if wrong and "--bfile" in own else ""
            meant = meant or nearest(wrong, parser.options())
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found

    def error(self, message: str) -> NoReturn:
        """Raise, or exit with 2 and one line instead of all options."""
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += nearest(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        if self.raises:
            raise InvalidInputError(message)
        print(f"{self.prog}: error: {message}\nsee '{self.prog} --help'", file=sys.stderr)
        raise UsageExit(message, self.prog.partition(" ")[2])

    def options(self) -> list[str]:
        """The long options that it takes."""
        return [action for action in self._option_string_actions if action.startswith("--")]


def _taken_by(option: str, commands: Sequence[str]) -> str:
    """Which of these commands takes an option, for a message; or ""."""
    for name in commands:
        if (parser := build_parser([name]).named) is not None and option in parser.options():
            return f"; 'streampca {name}' takes {option}"
    return ""


def build_parser(argv: Sequence[str] = OF_ALL) -> Parser:
    """The parser of all commands, with the options of the one that a command line names."""
    parser = Parser(
        prog="streampca",
        description="PCA of matrices that do not fit in memory.",
        epilog=KINDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"streampca {streampca.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    parsers: dict[str, Parser] = {
        name: commands.add_parser(
            name,
            help=text,
            description=text,
            epilog="\n".join(["examples:", *(f"  streampca {one}" for one in EXAMPLES[name])]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name, (_, text) in COMMANDS.items()
    }
    named = next((one for one in argv if one in COMMANDS), None)
    parser.commands, parser.named = parsers, parsers.get(named or "")
    wanted = [*COMMANDS] if named in OF_ALL else [named] if named else []
    for module in dict.fromkeys(COMMANDS[one][0] for one in wanted):
        import_module(f"streampca.cli.{module}").add_options(parsers, argv)
    for leaf in (leaf for one in wanted for leaf in leaves(parsers[one])):
        run_options(leaf)
    return parser


# The entry point.


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``streampca``. Returns the exit code."""
    with printable_output(), _terminable(), in_run():
        return _main(argv)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as an exception, as Ctrl-C is: what a pass has done is kept on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _terminated(*_: Any) -> NoReturn:
    raise SystemExit(TERMINATED)


def _main(argv: Sequence[str] | None) -> int:
    parser, arguments = None, argparse.Namespace()
    argv = sys.argv[1:] if argv is None else argv
    with contextlib.ExitStack() as logs:  # to the end: an error is logged too
        try:
            if not argv:
                print(WELCOME)
                return 0
            parser = build_parser(argv)
            warnings.showwarning = partial(_show_warning, parser)
            arguments = parser.parse_args(argv)
            if getattr(arguments, "config", None):
                arguments.apply_config(arguments.parser, arguments.config)
                arguments = parser.parse_args(argv)
            begin_logs(arguments, logs)
            return _run(arguments)
        except BrokenPipeError:
            return 0
        except SystemExit as stop:
            if stop.code in (USAGE, TERMINATED):
                if stop.code == TERMINATED and (folder := getattr(arguments, "checkpoint", None)):
                    stop.add_note(f"with --checkpoint {folder} the same command goes on from there")
                failed(stop, parser, getattr(arguments, "json", "--json" in argv))
            raise
        except (Exception, KeyboardInterrupt) as error:
            if exit_code(error) == FAULT and os.environ.get(TRACEBACK):
                raise
            return failed(error, parser, getattr(arguments, "json", "--json" in argv))


def _run(arguments: argparse.Namespace) -> int:
    """Run a command, and log when it begins and ends."""
    limited = getattr(arguments, "limited", contextlib.nullcontext)
    outputs = [getattr(arguments, name, None) for name in OUTPUTS]
    begun = time.perf_counter()
    with limited(getattr(arguments, "threads", None)), full_disk_noted(*outputs), noted(arguments):
        LOGGER.info("%s begins", arguments.command)
        code = int(arguments.run(arguments) or 0)
    seconds = round(time.perf_counter() - begun, 3)
    ending = {"exit": code, "seconds": seconds}
    LOGGER.info("%s ends with %d after %.1f s", arguments.command, code, seconds, extra=ending)
    return code


def _show_warning(parser: Parser, message: Any, category: Any, *_: Any) -> None:
    kind = category.__name__
    text = as_options(str(message), parser)
    announce(text, logging.WARNING, head=f"streampca: {kind}: ", look=YELLOW, kind=kind)
