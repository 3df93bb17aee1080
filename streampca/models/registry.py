"""Kinds of models: every estimator is here by the name of its class.

Loading, job files, the command line and the tests of the contract read this table, so that a class
defined anywhere, in another package too, takes part as soon as its module is imported.
"""

from __future__ import annotations

from typing import TypeVar, dataclass_transform

from streampca.errors import InvalidInputError
from streampca.models.linear import LinearModel
from streampca.models.parameters import declared, parameter

Class = TypeVar("Class", bound="type[LinearModel]")
KINDS: dict[str, type[LinearModel]] = {}


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
def estimator(cls: Class) -> Class:
    """Class decorator: declares the parameters of an estimator, and registers it by its name.

    Raises InvalidInputError where another module has registered that name.
    """
    before = KINDS.get(cls.__name__)
    if before is not None and before.__module__ != cls.__module__:
        raise InvalidInputError(
            f"{before.__module__} has registered a {cls.__name__} already; give the class in "
            f"{cls.__module__} another name"
        )
    KINDS[cls.__name__] = declared(cls)
    return cls


def registered_name(cls: type[LinearModel]) -> str:
    """The name under which a saved model of this class loads: its own, or that of a base class."""
    return next(base.__name__ for base in cls.__mro__ if KINDS.get(base.__name__) is base)


def kind_named(name: str) -> type[LinearModel]:
    """The estimator of that name. Raises InvalidInputError where none is registered."""
    if name not in KINDS:
        raise InvalidInputError(
            f"{name!r:.80} is no kind of model here; there are {', '.join(sorted(KINDS))}. "
            "A kind of another package is known once its module is imported"
        )
    return KINDS[name]
