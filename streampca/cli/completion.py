"""``streampca completion``: what a shell offers after Tab.

```sh
eval "$(streampca completion bash)"      # in ~/.bashrc; for zsh the same in ~/.zshrc
streampca completion fish > ~/.config/fish/completions/streampca.fish
```
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence

from streampca.cli.commands import COMMANDS, Parser, build_parser
from streampca.matrix.labels import json_of

Words = dict[str, list[str]]  # command -> its subcommands and options


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the options of the command."""
    one = parsers["completion"]
    one.set_defaults(run=run_completion)
    one.add_argument("shell", choices=sorted(SCRIPTS))


def run_completion(arguments: argparse.Namespace) -> int:
    """``streampca completion``: print the script of a shell."""
    words = _words()
    print(json_of(words) if arguments.json else SCRIPTS[arguments.shell](words))
    return 0


def _words() -> Words:
    """Of every command, what its parser takes."""
    parsers = build_parser().commands
    return {name: _taken(parsers[name]) for name in COMMANDS}


def _taken(parser: Parser) -> list[str]:
    usage = parser.format_usage()
    subcommands = re.search(r"\{([\w,-]+)\}\s+\.\.\.", usage)
    return [*(subcommands[1].split(",") if subcommands else ()), *parser.options()]


def _bash(words: Words) -> str:
    cases = "\n".join(f"    {name}) words='{' '.join(taken)}' ;;" for name, taken in words.items())
    return f"""_streampca() {{
  local words current="${{COMP_WORDS[COMP_CWORD]}}"
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words='' ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words='{" ".join(words)}'; fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _streampca streampca"""


def _zsh(words: Words) -> str:
    return "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" + _bash(words)


def _fish(words: Words) -> str:
    lines = []
    for name, taken in words.items():
        text = COMMANDS[name][1].replace("'", "\\'")
        lines.append(f"complete -c streampca -n __fish_use_subcommand -f -a {name} -d '{text}'")
        seen = f"complete -c streampca -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{seen} {'-l ' + one[2:] if one[0] == '-' else '-a ' + one}" for one in taken]
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[Words], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
