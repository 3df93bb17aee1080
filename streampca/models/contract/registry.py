"""The registry of models: every estimator by the name of its class.

Loading, job files, the command line and the tests of the contract read this table, so that a class
defined anywhere, in another package too, takes part as soon as its module is imported. Those of
this package load when their name is used, or when all are asked for.
"""

from __future__ import annotations

import inspect
from typing import TypeVar, dataclass_transform

from streampca.errors import InvalidInputError, SourceError
from streampca.imported import home_of, load_public
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.parameters import declared, parameter, with_types
from streampca.models.results.result import Result
from streampca.passes import on_threads
from streampca.store import understood

# methods that make passes or solve, on as many threads as the model says
COMPUTING = (
    "fit",
    "fit_transform",
    "partial_fit",
    "forget",
    "transform",
    "inverse_transform",
    "score",
    "score_samples",
    "reconstruction_error",
)

ASKED = ("plan", "fit", "fit_transform", "partial_fit")  # methods that use the parameters

Class = TypeVar("Class", bound="type[Estimator]")
KINDS: dict[str, type[Estimator]] = {}  # those that are loaded
LOADED: dict[str, type[Estimator]] = {}  # what opens saved results, and is not made of parameters


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
def estimator(cls: Class) -> Class:
    """Class decorator: declares the parameters of an estimator, and registers it by its name.

    Raises InvalidInputError where another module has registered that name.
    """
    known = KINDS.get(cls.__name__)
    before = home_of(cls.__name__) if known is None else known.__module__
    if before not in (None, cls.__module__):
        raise InvalidInputError(
            f"{before} has registered a {cls.__name__} already; give the class in "
            f"{cls.__module__} another name"
        )
    KINDS[cls.__name__] = declared(cls)
    cls.registered_name = cls.__name__
    return _checking(cls)


def _checking(cls: Class) -> Class:
    """The class, whose methods check the types of its parameters and run on its threads."""
    for name in dict.fromkeys(COMPUTING + ASKED):
        plain = getattr(cls, name, None)
        if not inspect.isfunction(plain) or hasattr(plain, "__wrapped__"):
            continue
        made = on_threads(plain) if name in COMPUTING else plain
        setattr(cls, name, with_types(made) if name in ASKED else made)
    return cls


def loaded(cls: Class) -> Class:
    """Class decorator: saved results whose ``estimator`` has the name of this class open as it."""
    LOADED[cls.__name__] = cls
    return _checking(cls)


def all_kinds() -> dict[str, type[Estimator]]:
    """Every kind of this package, and of the modules that are imported."""
    load_public()
    return KINDS


def opened_as(name: str) -> type[Estimator] | None:
    """The estimator as which results of that name open; None where none is registered."""
    load_public(name)
    return KINDS.get(name) or LOADED.get(name)


def kind_named(name: str) -> type[Estimator]:
    """The estimator of that name. Raises InvalidInputError where none is registered."""
    load_public(name)
    if name not in KINDS:
        raise InvalidInputError(
            f"{name!r:.80} is no kind of model here; there are {', '.join(sorted(all_kinds()))}. "
            "A kind of another package is known once its module is imported"
        )
    return KINDS[name]


def estimator_of(result: Result) -> Estimator:
    """A fitted estimator with this result, and the settings that made it.

    Where it computes, and where it writes meanwhile, is not taken from a saved model. Raises
    SourceError where the settings are not of such an estimator.
    """
    with understood("the saved model"):
        kind = opened_as(result.estimator)
        if kind is None:
            known = ", ".join(sorted(all_kinds()))
            raise SourceError(
                f"the saved model is a {result.estimator!r:.80}; known here: {known}. "
                "Import the package that defines it, or update streampca"
            )
        made: Estimator = kind.from_result(result)
        return made
