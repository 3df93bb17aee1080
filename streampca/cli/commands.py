"""All commands, and their parser. The module of a command loads when the command is used."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import streampca
from streampca.errors import InvalidInputError

COMMANDS = {  # command -> (its module, what it does)
    "plan": ("fit", "what a fit would do; reads no data"),
    "fit": ("fit", "fit a PCA or another model, report it, save it"),
    "transform": ("fit", "scores of new rows on a saved model"),
    "info": ("info", "describe a saved model or a source"),
    "prune": ("genotypes", "variants in approximate linkage equilibrium"),
    "project": ("genotypes", "new samples onto a saved genotype model"),
    "convert": ("genotypes", "copy genotypes to the Zarr layout read fastest"),
    "impute": ("impute", "complete a matrix by a low-rank model; missing cells are NaN, a code, "
               "or not stored"),
    "plot": ("pictures", "a picture of a saved model"),
    "report": ("pictures", "everything about a saved model as one HTML page that needs no network"),
    "demo": ("pictures", "make data with known structure and analyse them"),
    "models": ("models", "list, check, promote and remove stored versions"),
    "refresh": ("config", "update a model store from its source, by a job file"),
    "config": ("config", "check a job file, or print the schema of one"),
    "calibrate": ("calibrate", "measure the speeds of this machine, for plans with --rates"),
}  # fmt: skip
OF_ALL = "config"  # the command that knows the options of all others


class Parser(argparse.ArgumentParser):
    """A parser that can also raise InvalidInputError, for options from a file."""

    raises = False

    def error(self, message: str) -> NoReturn:
        if self.raises:
            raise InvalidInputError(message)
        super().error(message)


def build_parser(argv: Sequence[str] = (OF_ALL,)) -> Parser:
    """The parser of all commands, with the options of the one that a command line names."""
    parser = Parser(prog="streampca", description="PCA of matrices that do not fit in memory.")
    parser.add_argument("--version", action="version", version=f"streampca {streampca.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    parsers: dict[str, Parser] = {
        name: commands.add_parser(name, help=text, description=text)
        for name, (_, text) in COMMANDS.items()
    }
    named = next((one for one in argv if one in COMMANDS), None)
    wanted = COMMANDS if named == OF_ALL else filter(None, [named])
    for module in dict.fromkeys(COMMANDS[one][0] for one in wanted):
        import_module(f"streampca.cli.{module}").add_options(parsers, argv)
    return parser
