"""The command line: arguments in, words out."""

from streampca.cli.commands import main

__all__ = ["main"]
