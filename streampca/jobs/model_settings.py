"""The estimator of a job, and whether its parameters can be used at all."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, MemoryLimitError
from streampca.models.genotypes.filters import VariantFilter
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.pca.incremental_state import StateRequest
from streampca.models.registry import kind_named

SIDE = 64  # of the matrix that is not there


def build(kind: str, settings: Mapping[str, Any], **running: Any) -> Any:
    """The unfitted estimator.  running : parameters that change no result; it takes what it knows.

    Raises InvalidInputError.
    """
    settings = dict(settings)
    if isinstance(variants := settings.get("variants"), Mapping):
        try:
            settings["variants"] = VariantFilter(**variants)
        except TypeError:
            names = ", ".join(vars(VariantFilter()))
            raise InvalidInputError(
                f"variants={dict(variants)!r}; expected some of {names}"
            ) from None
    cls = kind_named(kind)
    return cls(**settings, **{n: v for n, v in running.items() if n in cls.parameters})


def problem_of(kind: str, settings: Mapping[str, Any]) -> tuple[str, str]:
    """(parameter, why) of a setting that no data can meet, or ("", "").

    Plans a fit of a matrix that is not there: nothing is read.
    """
    parameters = kind_named(kind).parameters
    for name, one in parameters.items():
        if isinstance(one.default, bool) and not isinstance(settings.get(name, True), bool):
            return name, f"{settings[name]!r:.80}; expected true or false"
    try:
        build(kind, settings)
        general = {n: value for n, value in settings.items() if not parameters[n].needs_data}
        for name in (n for n in general if parameters[n].counts_components):
            general[name] = _cut(general[name])
        model = build(kind, general, scheduler="threads", memory_limit="1TiB")
        with contextlib.suppress(MemoryLimitError):
            if isinstance(model, IncrementalPCA):
                StateRequest.of(model).check_appending((SIDE, SIDE))
            else:
                model.plan(np.broadcast_to(np.int8(0), (SIDE, SIDE)))
    except (InvalidInputError, InvalidTypeError) as error:
        name, _, words = str(error).partition("=")
        return (name, words) if name in settings else ("", str(error))
    except (TypeError, ValueError, ArithmeticError) as error:
        return _of_another_type(kind, settings, error)
    return "", ""


def _cut(count: Any) -> Any:
    """A number of components, or several, that the matrix can have."""
    if isinstance(count, list):
        return [_cut(one) for one in count]
    return min(count, SIDE) if type(count) is int else count


def _of_another_type(kind: str, settings: Mapping[str, Any], error: Exception) -> tuple[str, str]:
    """(parameter, why) of the setting that is of a type with which nothing can be done."""
    if len(settings) == 1:
        ((name, value),) = settings.items()
        return name, f"{value!r:.80}: {error}"
    for name, value in settings.items():
        found = problem_of(kind, {name: value})
        if found[1]:
            return found
    return "", str(error)
