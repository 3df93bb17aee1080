"""Many short cases in one test: an item of its own would take each longer than what it checks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, in a loop: where a case fails, a note names it.

    A case has a ``tmp_path`` of its own. Other fixtures are the same for all of them, and a skip
    skips those that follow.
    """
    keys = [name.strip() for name in names.split(",")]
    cases = [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        parameters = [p for p in signature.parameters.values() if p.name not in keys]
        assert len(parameters) + len(keys) == len(signature.parameters), "names of no parameters"

        @functools.wraps(test)
        def looped(*args: Any, **kwargs: Any) -> None:
            folder = kwargs.get("tmp_path")
            for number, case in enumerate(cases):
                if folder is not None:
                    kwargs["tmp_path"] = folder / str(number)
                    kwargs["tmp_path"].mkdir()
                try:
                    test(*args, **kwargs, **case)
                except BaseException as error:
                    said = ", ".join(f"{name}={value!r}" for name, value in case.items())
                    error.add_note(f"the case: {said}")
                    raise

        looped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return looped

    return decorate
