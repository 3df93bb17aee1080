"""The command line: arguments in, words out."""

from streampca.cli.main import main

__all__ = ["main"]
