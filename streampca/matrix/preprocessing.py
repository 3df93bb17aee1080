"""Preprocessing: the fitted steps from raw values to those of a matrix, applied to new rows too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.kernels import Array

ROUNDING = 1e-6  # relative tolerance for sums over the same rows in another order

RowSums = Callable[[Any, bool], Array]  # of a matrix: (n,) sums, or sums of squares
Matrix = TypeVar("Matrix")  # a ChunkedMatrix, whose module imports this one


class Step(ABC):
    """One step, with the numbers that it estimated from the rows of the fit. A frozen dataclass.

    Fields are numbers, strings, arrays, or steps of parts; they are saved with a model. One whose
    metadata say ``"saved": False`` is not, and is None after loading.
    """

    kinds: ClassVar[dict[str, type[Step]]] = {}
    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.kind, cls.kinds[kind] = kind, cls

    @property
    def width(self) -> int | None:
        """Number of features of its input rows; None: any number."""
        return None

    @property
    def fitted(self) -> bool:
        """Whether its output depends on the rows of the fit."""
        return False

    @abstractmethod
    def apply(self, matrix: Any, row_sums: RowSums) -> Any:
        """The ChunkedMatrix after this step, lazily. ``row_sums`` may be a pass over the matrix."""

    def __str__(self) -> str:
        return self.kind

    def same(self, other: Step) -> bool:
        """Whether both have the same effect on every row, up to rounding."""
        return type(self) is type(other) and all(
            _alike(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Preprocessing:
    """Fitted steps, in order; no steps for raw values."""

    steps: tuple[Step, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __str__(self) -> str:
        return ", ".join(map(str, self.steps)) or "none"

    @property
    def width(self) -> int | None:
        """Number of features of the raw rows; None: any number."""
        return next((step.width for step in self.steps if step.width is not None), None)

    @property
    def fitted(self) -> bool:
        """Whether the output depends on the rows of the fit."""
        return any(step.fitted for step in self.steps)

    def then(self, *steps: Step) -> Preprocessing:
        """These steps followed by further ones."""
        return Preprocessing((*self.steps, *steps))

    def after(self, done: Preprocessing) -> Preprocessing | None:
        """The steps that remain after ``done``; None where these do not begin with ``done``."""
        begun = self.steps[: len(done.steps)]
        alike = len(begun) == len(done.steps) and all(
            one.same(other) for one, other in zip(begun, done.steps, strict=True)
        )
        return Preprocessing(self.steps[len(begun) :]) if alike else None

    def apply(self, matrix: Matrix, row_sums: RowSums) -> Matrix:
        """The ChunkedMatrix after all steps, lazily; its labels record them.

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
        records = []
        for i, step in enumerate(self.steps):
            record: dict[str, Any] = {"kind": step.kind}
            for field in fields(step):  # type: ignore[arg-type]
                value, name = getattr(step, field.name), f"{stem}-{i}-{field.name}"
                if not field.metadata.get("saved", True):
                    continue
                if isinstance(value, np.ndarray):
                    arrays[name] = value
                elif field.name == "parts":
                    saved = [part.to_saved(f"{name}.{j}") for j, part in enumerate(value)]
                    record["parts"] = [inner for _, inner in saved]
                    for columns, _ in saved:
                        arrays |= columns
                else:
                    record[field.name] = value
            records.append(record)
        return arrays, records

    @classmethod
    def from_saved(
        cls,
        saved: Sequence[Mapping[str, Any]],
        arrays: dict[str, Array],
        stem: str = "preprocessing",
    ) -> Self:
        """The inverse of ``to_saved``; takes its arrays out of ``arrays``. Raises SourceError."""
        steps = []
        for i, record in enumerate(saved):
            kind = Step.kinds.get(str(record.get("kind")))
            if kind is None:
                raise SourceError(
                    f"the model takes a step {record.get('kind')!r} that this version of streampca "
                    f"does not know; it knows {sorted(Step.kinds)}"
                )
            values: dict[str, Any] = {}
            for field in fields(kind):  # type: ignore[arg-type]
                name = f"{stem}-{i}-{field.name}"
                if not field.metadata.get("saved", True):
                    continue
                if name in arrays:
                    values[field.name] = arrays.pop(name)
                elif field.name == "parts":
                    parts = enumerate(record.get("parts", ()))
                    values["parts"] = tuple(
                        cls.from_saved(part, arrays, f"{name}.{j}") for j, part in parts
                    )
                else:
                    values[field.name] = record.get(field.name)
            if odd := [name for name, value in values.items() if value is None]:
                raise SourceError(f"the saved step {kind.kind!r} has no {odd[0]}; it is damaged")
            steps.append(kind(**values))
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
