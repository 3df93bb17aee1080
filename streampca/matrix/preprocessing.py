"""What made the values of a matrix from raw ones: fitted steps that new rows get too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.kernels import Array

ROUNDING = 1e-6  # relative to the largest: numbers of the same rows, summed in another order

RowSums = Callable[[Any, bool], Array]  # of a matrix: (n,) sums, or sums of squares
Matrix = TypeVar("Matrix")  # a ChunkedMatrix: its labels hold what is defined here


class Step(ABC):
    """One step, with the numbers that it found in the rows of the fit. A frozen dataclass.

    Fields are numbers, words and arrays, or steps of parts: they are what is saved.
    """

    kinds: ClassVar[dict[str, type[Step]]] = {}
    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.kind, cls.kinds[kind] = kind, cls

    @property
    def width(self) -> int | None:
        """Features of the rows that it takes; None: any number."""
        return None

    @property
    def fitted(self) -> bool:
        """Whether the values that it gives depend on the rows of the fit."""
        return False

    @abstractmethod
    def apply(self, matrix: Any, row_sums: RowSums) -> Any:
        """The ChunkedMatrix after this step, lazily. ``row_sums`` may be a pass over the matrix."""

    def __str__(self) -> str:
        return self.kind

    def same(self, other: Step) -> bool:
        """Whether both do the same to every row, but for rounding."""
        return type(self) is type(other) and all(
            _alike(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Preprocessing:
    """Fitted steps, in the order in which they were taken; none for raw values."""

    steps: tuple[Step, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps)) or "none"

    @property
    def width(self) -> int | None:
        """Features of the raw rows; None: any number."""
        return next((one.width for one in self.steps if one.width is not None), None)

    @property
    def fitted(self) -> bool:
        """Whether the values that come out depend on the rows of the fit."""
        return any(one.fitted for one in self.steps)

    def then(self, *steps: Step) -> Preprocessing:
        """These steps and those after them."""
        return Preprocessing((*self.steps, *steps))

    def after(self, done: Preprocessing) -> Preprocessing | None:
        """What remains when ``done`` has been done; None where that is not how this begins."""
        begun = self.steps[: len(done.steps)]
        alike = len(begun) == len(done.steps) and all(
            one.same(other) for one, other in zip(begun, done.steps, strict=True)
        )
        return Preprocessing(self.steps[len(begun) :]) if alike else None

    def apply(self, matrix: Matrix, row_sums: RowSums) -> Matrix:
        """The ChunkedMatrix after all steps, lazily; its labels remember them.

        Raises InvalidInputError where a step was fitted to another number of features.
        """
        given: Any = matrix
        for step in self.steps:
            if step.width not in (None, given.shape[1]):
                raise InvalidInputError(
                    f"X has {given.shape[1]} features; expected raw rows with all {step.width} of "
                    f"the fit ({step})"
                )
            given = step.apply(given, row_sums)
        return given  # type: ignore[no-any-return]

    # -- at rest ------------------------------------------------------------------------------

    def to_saved(self, stem: str = "preprocessing") -> tuple[dict[str, Array], list[Any]]:
        """(arrays, JSON-ready description), for a bundle."""
        arrays: dict[str, Array] = {}
        described = []
        for i, step in enumerate(self.steps):
            told: dict[str, Any] = {"kind": step.kind}
            for one in fields(step):  # type: ignore[arg-type]
                value, name = getattr(step, one.name), f"{stem}-{i}-{one.name}"
                if isinstance(value, np.ndarray):
                    arrays[name] = value
                elif one.name == "parts":
                    saved = [part.to_saved(f"{name}.{j}") for j, part in enumerate(value)]
                    told["parts"] = [inner for _, inner in saved]
                    for columns, _ in saved:
                        arrays |= columns
                else:
                    told[one.name] = value
            described.append(told)
        return arrays, described

    @classmethod
    def from_saved(
        cls, saved: Sequence[Mapping[str, Any]], arrays: dict[str, Array],
        stem: str = "preprocessing",
    ) -> Self:  # fmt: skip
        """The inverse of ``to_saved``; takes its arrays out of ``arrays``. Raises SourceError."""
        steps = []
        for i, told in enumerate(saved):
            found = Step.kinds.get(str(told.get("kind")))
            if found is None:
                raise SourceError(
                    f"the model takes a step {told.get('kind')!r} that this version of streampca "
                    f"does not know; it knows {sorted(Step.kinds)}"
                )
            known: dict[str, Any] = {}
            for one in fields(found):  # type: ignore[arg-type]
                name = f"{stem}-{i}-{one.name}"
                if name in arrays:
                    known[one.name] = arrays.pop(name)
                elif one.name == "parts":
                    parts = enumerate(told.get("parts", ()))
                    known["parts"] = tuple(
                        cls.from_saved(part, arrays, f"{name}.{j}") for j, part in parts
                    )
                else:
                    known[one.name] = told.get(one.name)
            if odd := [name for name, value in known.items() if value is None]:
                raise SourceError(f"the saved step {found.kind!r} has no {odd[0]}; it is damaged")
            steps.append(found(**known))
        return cls(tuple(steps))


RAW = Preprocessing()


def _alike(mine: Any, theirs: Any) -> bool:
    """Whether two values of a field are the same, numbers to rounding."""
    if isinstance(mine, tuple):
        return len(mine) == len(theirs) and all(map(_alike, mine, theirs))
    if isinstance(mine, Preprocessing):
        left = mine.after(theirs)
        return left is not None and not left
    if isinstance(mine, (float, np.ndarray)):
        a, b = np.asarray(mine), np.asarray(theirs)
        slack = ROUNDING * float(np.max(np.abs(a), initial=0.0))
        return a.shape == b.shape and bool(np.all(np.abs(a - b) <= slack))
    return bool(mine == theirs)
