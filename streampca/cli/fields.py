"""Options made of the fields of an estimator: name, type, choices, default and meaning."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from streampca.errors import InvalidInputError
from streampca.models.contract.parameters import Parameter, Parameters
from streampca.operations.yaml_files import scalar

TEXT = {"str", "None", "os.PathLike[str]", "Names", "SamplePartition"}  # of names and paths
NONE = ("null", "none")  # words for None
Spelling = Mapping[str, Any]


def add_fields(parser: Any, cls: type[Parameters], spelled: Mapping[str, Spelling]) -> None:
    """Add an option for each of these parameters of a class.

    spelled : parameter -> what the command says otherwise than the field, as ``add_argument`` takes
    it; "flags" are the option's names.
    """
    for name, own in spelled.items():
        one = cls.parameters[name]
        said = {"help": f"{first_sentence(one.meaning)}{_default(one)}".replace("%", "%%"), **own}
        add_field(parser, cls, name, checked=True, **said)


def add_field(
    parser: Any, cls: type[Parameters], name: str, *, checked: bool = False, **own: Any
) -> None:
    """Add the option of a parameter; a flag turns it to what is not its default.

    checked : refuse words of another type, before the model does.
    own : as in :func:`add_fields`; "help" is the whole meaning otherwise.
    """
    one = cls.parameters[name]
    said: dict[str, Any] = {
        "dest": name,
        "default": one.default,
        "help": f"{plain(one.meaning)}{_default(one)}".replace("%", "%%"),
    }
    if isinstance(one.default, bool):
        said["action"] = "store_false" if one.default else "store_true"
    else:
        said["type"] = _reader(cls, name, checked)
        if "choices" not in own:
            said["metavar"] = name.strip("_").upper()
    parser.add_argument(*own.pop("flags", [option_of(name, one)]), **{**said, **own})


def option_of(name: str, one: Parameter) -> str:
    """``--max-passes`` for ``max_passes``; ``--no-center`` for a ``center`` that is True."""
    no = "no-" if one.default is True else ""
    return f"--{no}{name.strip('_').replace('_', '-')}"


def _reader(cls: type[Parameters], name: str, checked: bool) -> Any:
    """A function that reads the text of an option as YAML does, and checks it against choices.

    A name or a path is text, whatever it looks like; "null" and "none" are None.
    """
    one = cls.parameters[name]
    as_text = set(_annotations(cls)[name].split(" | ")) <= TEXT

    def read(text: str) -> Any:
        value: Any = text
        if text in NONE:
            value = None
        elif not as_text and not (one.counts_components and text == "all"):
            value = scalar(text)
        try:
            if checked:
                one.check(name, value)
        except InvalidInputError as error:
            said = str(error).removeprefix(f"{name}=")
            raise argparse.ArgumentTypeError(said) from None
        if one.choices and value not in one.choices:
            known = ", ".join("null" if each is None else str(each) for each in one.choices)
            raise argparse.ArgumentTypeError(f"{text!r}: expected one of {known}")
        return value

    return read


def one_or_several(values: Any) -> Any:
    """The value of an option that takes several: the only one itself, else a list."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values


def plain(text: str) -> str:
    """A text from the documentation without markup."""
    return re.sub(r":\w+:`([^`]*)`", r"\1", text).replace("``", "")


def first_sentence(text: str) -> str:
    """The first sentence of a meaning, for options of a command that has many."""
    return re.split(r"\.(?: |$)|; ", plain(text), maxsplit=1)[0]


def _default(one: Parameter) -> str:
    shown = one.default is not None and not isinstance(one.default, bool)
    return f" (default {one.default})" if shown else ""


def _annotations(cls: type) -> dict[str, str]:
    """The types of all fields of a class, as in its source text."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= {name: str(value) for name, value in vars(base).get("__annotations__", {}).items()}
    return found
