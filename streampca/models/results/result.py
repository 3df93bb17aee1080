"""What every fitted result has, whatever it models: provenance, labels, a saved form.

A kind of result is a class: its arrays are fields, what it can compute are methods. What it
cannot compute, it does not have. ::

    @dataclass(frozen=True, repr=False, kw_only=True)
    class KernelResult(Result, kind="kernel model"):
        eigenvalues: Array = shaped("k")
        eigenvectors: Array = shaped("n", "k")
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from streampca.errors import DamagedSourceError, InvalidInputError, SourceError
from streampca.imported import load_public
from streampca.kernels import Array
from streampca.matrix import (
    AxisLabels,
    ChunkedMatrix,
    Column,
    Labels,
    Preprocessing,
    component_axis,
)
from streampca.matrix.labels import labels_from_saved, labels_to_saved, plain
from streampca.models.results.row_maps import RowMap, RowOptions
from streampca.models.results.score_scaling import as_transformed
from streampca.passes import MemoryUse, PassCost
from streampca.passes.memory import own_peak, peak_nbytes
from streampca.report.cards import result_card, settings_line
from streampca.report.presentation import Presentation
from streampca.store import check_fields, check_shapes, read_bundle, understood, write_bundle

NUMBER, TEXT, LIST, OBJECT = (int, float, type(None)), (str, type(None)), (list,), (dict,)
PROVENANCE: dict[str, tuple[type, ...]] = {
    "reads": NUMBER,
    "bytes": NUMBER,
    "stored_bytes": NUMBER,
    "peak_bytes": NUMBER,
    "held_bytes": NUMBER,
    "seconds": NUMBER,
    "passes": LIST,
    "versions": OBJECT,
    "source": TEXT,
}
PLAN: dict[str, tuple[type, ...]] = {
    "solver": TEXT,
    "reason": TEXT,
    "passes": LIST,
    "reads": NUMBER,
    "bytes": NUMBER,
    "peak_bytes": NUMBER,
}
DOCUMENTED = ("str", "int", "float", "float | None", "bool", "Mapping[str, Any]")  # kept as JSON
PLACES, PART = "places", "part"


def shaped(*shape: str | None, empty: Any = None, optional: bool = False) -> Any:
    """Declare an array of a result.

    shape : "k" components, "p" features; None or another letter is any length.
    empty : the shape of what it is by default.  optional : None by default.
    """
    metadata = {"shape": shape}
    if optional:
        return field(default=None, metadata=metadata)
    if empty is not None:
        return field(default_factory=lambda: np.zeros(empty), metadata=metadata)
    return field(metadata=metadata)


def places() -> Any:
    """Declare an array of feature numbers; empty by default."""
    metadata = {"shape": (None,), PLACES: True}
    return field(default_factory=lambda: np.zeros(0, dtype=np.int64), metadata=metadata)


def part(
    save: Callable[[Any, dict[str, Array]], Any], restore: Callable[[Any, dict[str, Array]], Any]
) -> Any:
    """Declare a part with a saved form of its own; None by default.

    save : of the part and the arrays of the bundle, to which it adds its own, a JSON-ready form.
    restore : of that form and the arrays, from which it takes its own, the part.
    """
    return field(default=None, metadata={PART: (save, restore)})


@dataclass(frozen=True, repr=False, kw_only=True)
class Result:
    """The frozen result of a fit: saved, published and applied as it is.

    method : the name of the estimator.  n_samples : rows of the fit, 0 where they are not known.
    settings : its parameters.  provenance : source, cost and versions.  plan : what was run.
    scores : (n, k) of the rows of the fit, where it has them.
    """

    method: str
    n_samples: int
    labels: Labels = field(default_factory=lambda: Labels.plain((0, 0)))
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    scores: Array | None = shaped(None, "k", optional=True)

    takes_complex: ClassVar[bool] = False  # whether rows and scores may be complex
    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Result]]] = {}  # by the kind in a saved document

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            known = cls.kinds.get(kind)
            if known is not None and known.__module__ != cls.__module__:
                raise InvalidInputError(f"{known.__module__} has registered a {kind!r} already")
            cls.kind = kind
            cls.kinds[kind] = cls

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, np.ndarray):
                frozen = value.view()
                frozen.flags.writeable = False
                object.__setattr__(self, one.name, frozen)

    @property
    def estimator(self) -> str:
        """The kind of estimator that loads this; see :mod:`~streampca.models.contract.registry`."""
        return self.method

    @property
    def n_components(self) -> int:
        """k."""
        raise NotImplementedError

    @property
    def n_features(self) -> int:
        """p, dropped and constant features included."""
        return len(self.labels.features)

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the rows of the fit, which new rows get too; often empty."""
        return self.labels.preprocessing

    @property
    def component_axis(self) -> AxisLabels:
        """The axis of the components in labelled results, counted from 1."""
        return component_axis(self.n_components, self.labels.samples, self.labels.features)

    def unscaled_scores(self, scores: Any, whitened: bool = False) -> Any:
        """Scores (..., k) of a caller as ``transform`` gives them: labelled components in their
        order, and without the scaling that they carry.

        whitened : with unit variance. Raises InvalidInputError for other components.
        """
        return as_transformed(scores, self.component_axis, None, whitened)

    @property
    def standardised(self) -> bool:
        """Whether scores have no unit."""
        return True

    @property
    def weighted(self) -> bool:
        """Whether features had weights."""
        return False

    # -- rows -----------------------------------------------------------------------------------

    def scores_of(self, options: RowOptions) -> RowMap:
        """The map from rows to their scores (rows, k), with the options of the parameters."""
        raise NotImplementedError

    def as_rows(self, matrix: ChunkedMatrix) -> ChunkedMatrix:
        """A matrix of new rows, in the form that the maps of this kind expect."""
        return matrix

    @property
    def kept_nbytes(self) -> int:
        """Bytes of the model while it is applied."""
        return 8 * self.n_components * self.n_features

    @property
    def removes(self) -> bool:
        """Whether something is removed from rows before they are scored."""
        return False

    def removed_from(self, matrix: ChunkedMatrix, remove: Any) -> tuple[Array, Array] | None:
        """What the fit removed from its rows, at the samples of a matrix; None where nothing is.

        (basis (n, r), coefficients (1 + r, p), the mean first). Raises InvalidInputError.
        """
        if remove is None or remove is False:
            return None
        raise InvalidInputError(f"a {self.method} removes nothing from rows; leave remove out")

    # -- in words -------------------------------------------------------------------------------

    def table(self, rows: int = 10) -> str:
        """The leading components as text."""
        return ""

    @property
    def options_used(self) -> dict[str, Any]:
        """The settings as what ran took them, for information; those that are None are left out."""
        return {name: value for name, value in self.settings.items() if value is not None}

    def notes(self) -> list[str]:
        """Lines that ``streampca info`` adds about this kind."""
        return []

    def fields_of(self, kind: type[Result]) -> dict[str, Any]:
        """The fields that another kind has too, by name."""
        known = {field.name for field in fields(self)}
        return {one.name: getattr(self, one.name) for one in fields(kind) if one.name in known}

    @property
    def identity(self) -> tuple[Any, ...]:
        """The arrays (or None) that identify the model that scores belong to."""
        return tuple(getattr(self, one.name) for one in fields(self) if "shape" in one.metadata)

    def summary(self) -> dict[str, Any]:
        """The result in numbers, JSON-ready: what ``streampca info --json`` prints."""
        source, plan = self.provenance, self.plan
        costs = ("reads", "bytes", "stored_bytes", "peak_bytes", "seconds")
        passes = sum(one.get("times_at_most", 1) for one in plan.get("passes", ()))
        return {
            "method": self.method,
            "samples": self.n_samples,
            "features": self.n_features,
            "components": self.n_components,
            "preprocessing": [str(step) for step in self.preprocessing.steps],
            "solver": plan.get("solver"),
            "planned": {
                "passes": passes,
                **{name: plan.get(name) for name in ("reads", "bytes", "peak_bytes")},
            },
            "measured": {
                "passes": len(source.get("passes", ())),
                **{name: source.get(name) for name in costs},
            },
        }

    def record(self) -> dict[str, Any]:
        """The entry of its model in the manifest of a version."""
        provenance = dict(self.provenance)
        return {
            "method": self.method,
            "samples": self.n_samples,
            "features": self.n_features,
            "components": self.n_components,
            "settings": plain(self.settings),
            "source": {"fingerprint": provenance.pop("source", "")},
            "libraries": provenance.pop("versions", {}),
            "plan": plain(self.plan),
            "cost": plain(provenance),
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._headline()}>"

    @property
    def peak_nbytes(self) -> int | None:
        """Bytes that the fit took at most, without what its process held before; or None."""
        peak, held = (self.provenance.get(one) for one in ("peak_bytes", "held_bytes"))
        return None if peak is None else own_peak(self.plan.get("memory", {}), peak, held)

    def __str__(self) -> str:
        return f"{self._headline()}\n{self.table()}".rstrip()

    def _headline(self) -> str:
        rows = self.n_samples or "an unknown number of"
        return (
            f"{self.method}: {self.n_components} components of {rows} samples x "
            f"{self.n_features} features"
        )

    def _repr_html_(self) -> str:
        return result_card(self, self.method, settings_line(self))

    def presentation(self) -> Presentation:
        """What pictures and reports show of it; a kind adds what it has."""
        return Presentation(
            method=self.method,
            labels=self.labels,
            n_components=self.n_components,
            pictures="plots.scores(model, scores=model.transform(X)), or plots.pairs",
            component="Direction ",
            scores=self.scores,
            arrange=self.unscaled_scores,
            provenance=self.provenance,
        )

    # -- at rest --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a directory: Zarr arrays with checksums and JSON, whole or not at all."""
        return write_bundle(path, *self.to_saved())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote; every file is checked. Raises SourceError."""
        return cls.from_saved(*read_bundle(path), str(path))

    def to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """(arrays, JSON-ready document): all of it, for a bundle."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        columns, labels = labels_to_saved(self.labels)
        arrays: dict[str, Any] = {
            n: value for n, value in values.items() if isinstance(value, (np.ndarray, Column))
        }
        arrays |= columns
        kept = [one.name for one in fields(self) if one.type in DOCUMENTED]
        document = {name: plain(values[name]) for name in kept}
        for name, (save, _) in self._parts():
            document[name] = None if values[name] is None else save(values[name], arrays)
        return arrays, {**document, "labels": labels, "kind": self.kind}

    @classmethod
    def from_saved(cls, arrays: dict[str, Array], document: dict[str, Any], where: str) -> Self:
        """The inverse of ``to_saved``, whose shapes it checks.  where : for messages.

        Raises SourceError for another kind, and for one that is not known here.
        """
        kind = str(document.pop("kind", None))
        load_public(str(document.get("method")))  # which defines the kind
        if kind not in cls.kinds:
            load_public()
        found = cls.kinds.get(kind)
        if found is None or not issubclass(found, cls):
            raise SourceError(
                f"{where} is not a model: it is a {kind!r:.80}; expected one of "
                f"{', '.join(name for name, one in cls.kinds.items() if issubclass(one, cls))}"
            )
        with understood(where):
            labels = labels_from_saved(document.pop("labels"), arrays)
            for name, (_, restore) in found._parts():
                saved = document[name]
                document[name] = None if saved is None else restore(saved, arrays)
            made = found(**{**document, **arrays, "labels": labels})
            made.check(where)
        return made

    @classmethod
    def _parts(cls) -> list[tuple[str, tuple[Any, Any]]]:
        """(name, how it is saved and restored) of each part with a saved form of its own."""
        return [(one.name, one.metadata[PART]) for one in fields(cls) if PART in one.metadata]

    def check(self, where: str) -> None:
        """Check types and shapes after loading. Raises DamagedSourceError."""
        check_fields(self, where, self.takes_complex)
        size = {"k": self.n_components, "p": self.n_features}
        shapes: dict[str, tuple[int | None, ...]] = {
            one.name: tuple(size.get(dim) for dim in one.metadata["shape"])
            for one in fields(self)
            if "shape" in one.metadata
        }
        check_shapes(self, shapes, where)
        p = self.n_features
        for one in fields(self):
            if PLACES not in one.metadata:
                continue
            found = np.asarray(getattr(self, one.name))
            if found.size and not (
                found.dtype.kind in "iu" and found.min() >= 0 and found.max() < p
            ):
                raise DamagedSourceError(f"{where} is damaged: {one.name} is not of its features")
        if len(self.labels.features) != p:
            raise DamagedSourceError(
                f"{where} is damaged: it names {len(self.labels.features)} of {p} features"
            )
        _check_entries(self.provenance, PROVENANCE, f"{where}: provenance")
        _check_entries(self.plan, PLAN, f"{where}: plan")
        for one_pass in self.plan.get("passes", ()):
            at_most = one_pass.get("times_at_most", 1) if isinstance(one_pass, dict) else None
            if type(at_most) is not int:
                raise DamagedSourceError(f"{where} is damaged: plan: {one_pass!r:.80} is no pass")


def _check_entries(document: Any, types: dict[str, tuple[type, ...]], where: str) -> None:
    """Check the types of the entries that are printed, if they are present."""
    for name, kinds in types.items():
        value = document.get(name)
        if name in document and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise DamagedSourceError(f"{where} is damaged: {name} is {value!r:.80}")


def provenance(
    costs: Sequence[PassCost], source: str, memory: MemoryUse | None = None
) -> dict[str, Any]:
    """The source, the cost of reading it, and the versions of libraries.

    ``peak_bytes`` is the most that this process held while the fit ran, ``held_bytes`` of it were
    there before. Without ``memory``: the peak of this process so far.
    """
    names = ("streampca", "numpy", "scipy", "zarr", "dask", "xarray")
    return {
        "source": source,
        "passes": [vars(cost) for cost in costs],
        "reads": sum(c.reads for c in costs),
        "bytes": sum(c.nbytes for c in costs),
        "stored_bytes": sum(c.stored for c in costs),
        "seconds": sum(c.seconds for c in costs),
        "peak_bytes": peak_nbytes() if memory is None else memory.peak_nbytes(),
        "held_bytes": None if memory is None else memory.held,
        "versions": {"python": platform.python_version(), **{n: _version(n) for n in names}},
    }


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
