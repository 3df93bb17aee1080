"""Parameters of estimators, each declared once, as a field of its class.

The constructor and its signature, ``get_params``, the documentation, what is saved with a model,
and what job files and the command line offer all come from these fields. Every estimator has those
of :class:`RunningParameters`; ``shared_parameters`` has those that several share.
"""

from __future__ import annotations

import inspect
import os
import re
import reprlib
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, wraps
from numbers import Integral, Real
from typing import Any, Self, TypeVar, dataclass_transform

import numpy as np

from streampca.errors import InvalidInputError, hide_secrets
from streampca.passes import Running, is_client

Class = TypeVar("Class", bound=type)
WIDTH = 100  # of generated documentation
CLONED = ("_output", "_requested")  # what set_output and set_fit_request leave


class Kept(Enum):
    """What a result and a saved model keep of a parameter."""

    VALUE = "as it is"
    NAME = "where it is a name, or several: arrays lie in the result itself"
    RECORD = "as it is, for the record: a loaded model does not have it"
    NOT = "nothing: it is of one process, or of one matrix"


@dataclass(frozen=True)
class Parameter:
    """One parameter of an estimator.

    default : its default value.
    meaning : one paragraph for the documentation.
    choices : allowed values, if these are all.
    kw_only : given by name alone.
    kept : what is kept with a result.
    process : it concerns where and how this process computes, not what: job files do not set it.
    needs_data : it can be checked only against a matrix, whose names or dates it uses.
    counts_components : it is the number of components, which the matrix bounds.
    inert : another library has it, and nothing here depends on it: the command line leaves it out.
    types : of its values, in the words of its annotation; empty where that is no union of scalars.
    """

    default: Any
    meaning: str
    choices: tuple[Any, ...] = ()
    kw_only: bool = True
    kept: Kept = Kept.VALUE
    process: bool = False
    needs_data: bool = False
    counts_components: bool = False
    inert: bool = False
    types: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        """Refuse a value of another type. Raises InvalidInputError."""
        if self.types and not any(SCALARS[one].holds(value) for one in self.types):
            expected = [SCALARS[one].words for one in self.types]
            raise InvalidInputError(f"{name}={_short(value)}; expected {' or '.join(expected)}")


@dataclass(frozen=True)
class Scalar:
    """A type of scalars.  words : for messages."""

    words: str
    kinds: tuple[type, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is of this type; numbers may stand for each other."""
        return isinstance(value, self.kinds)


NUMBERS = (Real, np.bool_)
SCALARS = {
    "bool": Scalar("True or False", (bool, np.bool_, Integral)),
    "int": Scalar("a number", NUMBERS),
    "float": Scalar("a finite number", NUMBERS),
    "str": Scalar("a name", (str, os.PathLike, *NUMBERS)),
    "os.PathLike[str]": Scalar("a path", (os.PathLike,)),
    "None": Scalar("None", (type(None),)),
}


def scalar_types(annotation: Any) -> tuple[str, ...]:
    """The names of a union of scalars; none for any other annotation."""
    names = tuple(one.strip() for one in str(annotation).split("|"))
    return names if set(names) <= SCALARS.keys() else ()


def parameter(
    *,
    default: Any,
    meaning: str,
    choices: tuple[Any, ...] = (),
    kw_only: bool = True,
    kept: Kept = Kept.VALUE,
    process: bool = False,
    needs_data: bool = False,
    counts_components: bool = False,
    inert: bool = False,
) -> Any:
    """Declare a field of an estimator; see :class:`Parameter`."""
    meaning = " ".join(meaning.split())
    return Parameter(
        default, meaning, choices, kw_only, kept, process, needs_data, counts_components, inert
    )


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
def declared(cls: Class) -> Class:
    """Class decorator: parameters become the constructor, the defaults and the documentation.

    Fields of base classes that are declared so too come last; a constructor of its own stays.
    """
    types = vars(cls).get("__annotations__", {})
    own = {
        name: replace(value, types=scalar_types(types.get(name)))
        for name, value in vars(cls).items()
        if isinstance(value, Parameter)
    }
    inherited: Mapping[str, Parameter] = getattr(cls, "parameters", {})
    known = own | {name: value for name, value in inherited.items() if name not in own}
    fields = dict(sorted(known.items(), key=lambda item: item[1].kw_only))
    cls.parameters = fields  # type: ignore[attr-defined]
    for name, value in own.items():
        setattr(cls, name, value.default)
    if "__init__" not in vars(cls):
        cls.__init__ = _constructor(fields)  # type: ignore[misc]
    cls.__doc__ = _documentation(cls.__doc__ or "", fields)
    return cls


def _constructor(fields: Mapping[str, Parameter]) -> Callable[..., None]:
    """An ``__init__`` that stores its arguments untouched."""
    kinds = {False: inspect.Parameter.POSITIONAL_OR_KEYWORD, True: inspect.Parameter.KEYWORD_ONLY}
    signature = inspect.Signature(
        [
            inspect.Parameter("self", kinds[False]),
            *(
                inspect.Parameter(name, kinds[field.kw_only], default=field.default)
                for name, field in fields.items()
            ),
        ]
    )

    places = [name for name, field in fields.items() if not field.kw_only]
    defaults = {name: field.default for name, field in fields.items()}
    complete = inspect.Parameter.empty not in defaults.values()

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        first = dict(zip(places, args, strict=False))
        if complete and len(args) <= len(places) and named.keys() <= defaults.keys() - first.keys():
            vars(self).update(defaults | first | named)  # as below, in a tenth of the time
            return
        try:
            bound = signature.bind(self, *args, **named)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}() {error}") from None
        bound.apply_defaults()
        del bound.arguments["self"]
        vars(self).update(bound.arguments)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__


def _documentation(text: str, fields: Mapping[str, Parameter]) -> str:
    """A docstring with a section of the parameters before what else has a title."""
    text = inspect.cleandoc(text)
    entries = []
    for name, field in fields.items():
        words = f"{name} : {field.meaning}"
        entries.append(
            textwrap.fill(words, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        )
    section = "\n".join(["Parameters", "----------", *entries])
    title = re.search(r"^(Attributes|Cost|Source)\b", text, re.MULTILINE)
    if title is None:
        return f"{text}\n\n{section}"
    return f"{text[: title.start()].rstrip()}\n\n{section}\n\n{text[title.start() :]}"


class Parameters:
    """Parameters stored untouched by the constructor: ``get_params``, ``set_params``, ``repr``."""

    parameters: Mapping[str, Parameter] = {}

    @classmethod
    def _parameters(cls) -> list[str]:
        constructed: Any = cls
        return list(_arguments_of(constructed))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; takes effect at the next fit. Raises InvalidInputError."""
        for name, value in params.items():
            if name not in self._parameters():
                raise InvalidInputError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}(). Valid "
                    f"parameters are: {self._parameters()!r}."
                )
            setattr(self, name, value)
        return self

    def either(self, name: str, alias: str) -> Any:
        """The value of a parameter that has two names. Raises InvalidInputError."""
        value, other = getattr(self, name), getattr(self, alias)
        if other is None or other == value:
            return value
        if value != self.parameters[name].default:
            raise InvalidInputError(
                f"{name}={value!r} and {alias}={other!r} say different things; leave {alias} out"
            )
        return other

    def check_types(self) -> None:
        """Refuse values of other types than declared. Raises InvalidInputError."""
        for name, one in self.parameters.items():
            one.check(name, getattr(self, name))

    def stored_params(self) -> dict[str, Any]:
        """The arguments that are kept with a result; see :class:`Kept`."""
        stored = {}
        for name, value in self.get_params().items():
            kept = self.parameters[name].kept if name in self.parameters else Kept.VALUE
            if kept is not Kept.NOT:
                stored[name] = names_alone(value) if kept is Kept.NAME else value
        return stored

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> Self:
        """An estimator with the stored arguments that a loaded model takes over."""
        left = {n for n, one in cls.parameters.items() if one.kept in (Kept.RECORD, Kept.NOT)}
        return cls(**{n: stored[n] for n in cls._parameters() if n in stored and n not in left})

    def __getstate__(self) -> dict[str, Any]:
        """The state without a client, which belongs to this process."""
        state = dict(self.__dict__)
        if is_client(state.get("scheduler")):
            state["scheduler"] = None
        return state

    def __sklearn_clone__(self) -> Self:
        """The same parameters, not fitted; a client is shared, as it cannot be copied.

        What ``set_output`` and ``set_fit_request`` said stays.
        """
        from sklearn.base import clone

        params = {
            name: value if is_client(value) else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        made = type(self)(**params)
        vars(made).update({n: v for n, v in vars(self).items() if n in CLONED})
        return made

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={_short(value)}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


@lru_cache(maxsize=256)
def _arguments_of(cls: type) -> tuple[str, ...]:
    """The names of the arguments of a constructor."""
    return tuple(n for n in inspect.signature(cls.__init__).parameters if n != "self")  # type: ignore[misc]


def with_types(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, after a look at the types of the parameters of its model."""

    @wraps(method)
    def inside(self: Any, *args: Any, **named: Any) -> Any:
        self.check_types()
        return method(self, *args, **named)

    return inside


@declared
class RunningParameters(Parameters):
    """How the passes of an estimator run, and which number means "missing"."""

    missing_value: float | None = parameter(
        default=None, meaning="""a number that means "missing", in addition to NaN."""
    )
    memory_limit: int | str | None = parameter(
        default=None,
        process=True,
        meaning="""bytes or such as "512MiB": plan within it, or refuse before reading. It is that
            of a process which does nothing else: the interpreter, the libraries that X needs as
            they weigh here, X itself where it is in memory, and the fit. What else your process
            holds does not count; the machine must have room for it and the plan, which is checked
            first. A fit that takes more than its plan warns (MemoryPlanWarning).""",
    )
    scheduler: Any = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""None (the ambient ``distributed.Client`` if there is one, else threads),
            "threads", an address, or a Client. Workers read a path or URL themselves, which is the
            best to hand over, and must see the same store there; a lazy Dask array sends its graph
            too, and a persisted one is folded where it lies. An array in memory is folded here,
            unless an address or a Client is named: then it is sent there once. Inside a task of
            that cluster the fit runs on its worker. Every wait ends, with a warning before and a
            ClusterError that names whom it waited for: silent or paused workers, or a lost
            scheduler, after 180 s; no worker, after 1800 s, or at once where the cluster object
            says that none will come. ``streampca.passes`` has the list.""",
    )
    threads: int | None = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""how many compute, in passes and solvers of this process. None: the cores that the
            system, its CPU quota and OMP_NUM_THREADS leave to it, or ``streampca.threads`` in
            Dask's configuration; fewer where they do not fit the memory. No result depends on
            it.""",
    )
    progress: Any = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="None (in a terminal or notebook), True, False, or a function of an ``Advance``.",
    )
    checkpoint: str | None = parameter(
        default=None,
        kept=Kept.NOT,
        process=True,
        meaning="""directory in which an interrupted pass leaves its state, and finds it again.""",
    )

    @property
    def _running(self) -> Running:
        """How its passes run."""
        return Running(
            self.memory_limit, self.scheduler, self.progress, self.checkpoint, self.threads
        )

    @property
    def _running_once(self) -> Running:
        """How a pass runs that is no part of the fit: it leaves no checkpoint."""
        return replace(self._running, checkpoint=None)


# Values as text.

LONG = 700  # characters of a value, from which it is abbreviated: scikit-learn's N_CHAR_MAX
SHOWN = 30  # items of a value that is, and scikit-learn's N_MAX_ELEMENTS_TO_SHOW


def _short(value: Any) -> str:
    """A value as text, abbreviated where that is long: a model may name thousands of samples."""
    text = hide_secrets(repr(value))
    if len(text) <= LONG:
        return text
    few = reprlib.Repr()
    few.maxlist = few.maxtuple = few.maxset = few.maxfrozenset = few.maxdict = SHOWN
    few.maxstring = few.maxother = LONG
    found = few.repr(hide_secrets(value) if isinstance(value, str) else value)
    return hide_secrets(found)


def names_alone(value: Any) -> Any:
    """The value if it is a name or several names; None for arrays."""
    words = [value] if isinstance(value, str) else value
    plain = isinstance(words, (list, tuple)) and all(isinstance(word, str) for word in words)
    return value if plain else None
