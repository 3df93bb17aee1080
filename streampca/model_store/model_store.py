"""``streampca.load`` and the model store: versions that open as fitted models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.model_store.history import Entry, History
from streampca.model_store.stored_version import Part, StoredVersion
from streampca.model_store.versions import VersionStore
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.registry import estimator_of
from streampca.models.pca.incremental_pca import IncrementalPCA
from streampca.models.results.result import Result
from streampca.store import StoredRows, is_bundle, open_backend
from streampca.store.places import left_over
from streampca.store.sinks import version_of

SCORES = "scores"  # name of a part of a version, and of the array in it
MONITOR = "monitor"  # the part with T^2 and SPE of the rows of the fit


class Version(StoredVersion):
    """One immutable version of a model: ``number``, ``id``, ``record``, and the model itself.

    Everything that is read is checked against its digest first; raises SourceError if it is absent
    or altered.
    """

    def load(self) -> Estimator:
        """The fitted model, ready to transform."""
        return estimator_of(self.result())

    @property
    def parent(self) -> str | None:
        """The id of the version that was served when a refresh made this one."""
        parent: str | None = self.record.get("lineage", {}).get("parent")
        return parent

    def result(self) -> Result:
        """The decomposition alone; read once."""
        return self._result

    @cached_property
    def _result(self) -> Result:
        return Result.from_saved(*self.read("model"), f"version {self.number}")

    def state(self) -> IncrementalPCA | None:
        """The model with its accumulated state, to which rows can be appended; None without."""
        if "state" not in self.parts:
            return None
        return IncrementalPCA.state_from_saved(*self.read("state"), f"version {self.number}")

    def scores(self) -> StoredRows:
        """The scores (n, k) of this version: slices of rows are arrays.

        With ``scores: rows: new`` they begin at row ``record["scores"]["first_row"]``.
        Raises SourceError if the version has none.
        """
        return self.rows(SCORES, SCORES)

    def distances(self) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        """(``t2``, ``spe`` and ``missing`` (n,) of the rows of the fit; their limits and counts),
        as :func:`streampca.monitor` gives them. Raises SourceError if the version has none."""
        if MONITOR not in self.parts:
            raise SourceError(
                f"version {self.number} keeps no T2 and SPE of its rows; those that a job with a "
                "section monitor makes do. Now: streampca monitor MODEL SOURCE --rows fit"
            )
        return self.read(MONITOR)

    def __repr__(self) -> str:
        return f"<Version {self.number} ({self.id}) in {self.backend.place}>"


class ModelStore(VersionStore[Version]):
    """Versions of a model in a directory or an object store.

    place : a local path, or a URL (``s3://``, ``gs://``, ``az://``) with ``obstore`` installed.
        Nothing is created there before the first version is published.
    storage_options : for the object store; never stored. Other credentials come from the
        environment.

    A version is written, flushed, and then committed by one entry of an append-only log, which is
    created only if it is absent. So readers always get a complete version, the old or the new one,
    no matter when a process dies. ``promote``, ``rollback``, ``alias``, ``verify``, ``gc``,
    ``find``, ``versions`` and ``entries`` come from
    :class:`streampca.model_store.versions.VersionStore`.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> X = np.random.default_rng(0).standard_normal((50, 4))
    >>> store = streampca.ModelStore("models/nightly")
    >>> store.publish(streampca.PCA(2).fit(X))  # served from now on
    <Version 1 (...) in models/nightly>
    >>> store.publish(streampca.PCA(3).fit(X), reason="one more").number
    2
    >>> store.rollback().number, store.load().n_components_  # as streampca.load("models/nightly")
    (1, 2)
    >>> store.alias("challenger", 2)
    <Version 2 (...) in models/nightly>
    >>> streampca.load("models/nightly", version="challenger").n_components_
    3
    """

    def __init__(
        self, place: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(open_backend(os.fspath(place), storage_options), Version)

    def latest(self) -> Version:
        """The promoted version. Raises SourceError if there is none."""
        return self.find()

    def load(self, version: int | str | None = None) -> Estimator:
        """The promoted model, or that of a version (see ``find``), ready to transform."""
        return self.read_current(Version.load, version)

    def load_with_scores(self, version: int | str | None = None) -> tuple[Estimator, StoredRows]:
        """The promoted model and its scores, always of the same version; or those of ``version``.

        Raises SourceError if it has no scores, or no version is promoted.
        """
        return self.read_current(lambda one: (one.load(), one.scores()), version)

    def publish(
        self,
        model: Any,
        *,
        state: bool = True,
        promote: bool = True,
        key: str = "",
        base: History | None = None,
        reason: str = "",
        more: Mapping[str, Part] | None = None,
        record: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None = None,
        scores: Any = None,
        version: str | None = None,
        just_before: Callable[[], None] | None = None,
    ) -> Version:
        """Publish a fitted estimator, or its result; see :meth:`VersionStore.commit`.

        state : store the accumulated state of an IncrementalPCA too, so that rows can be appended.
        scores : (n, k) of the training rows or others; an array, or an object whose slices are
            arrays. They become visible with the model, in the same commit.
        more : further parts.
        record : further entries of the record; or a function that returns them for the number of
            the version, which may be called again with another number.
        Raises InvalidInputError for what is no fitted model, BusyError, OSError.
        """
        result = model if isinstance(model, Result) else getattr(model, "result_", None)
        if not isinstance(result, Result):
            raise InvalidInputError(
                f"cannot publish {type(model).__name__}; expected a fitted model or its result_"
            )
        parts: dict[str, Part] = {"model": result.to_saved()}
        if state and isinstance(model, IncrementalPCA):
            parts["state"] = model.state_to_saved()
        if scores is not None:
            parts[SCORES] = ({SCORES: _checked_scores(scores, result)}, {})
        own = result.record()

        def whole(number: int) -> dict[str, Any]:
            return {**own, **((record(number) if callable(record) else record) or {})}

        return self.commit(
            {**parts, **(more or {})},
            whole,
            promote=promote,
            key=key,
            base=base,
            reason=reason,
            version=version,
            just_before=just_before,
        )

    def _outside(self, removed: list[Entry]) -> list[str]:
        """Paths at which a refresh put scores of removed versions, if these are still there.

        Also what killed processes left next to these paths and next to the store.
        """
        found: list[str] = []
        if "://" not in self.backend.place:
            found += left_over(self.backend.place)
        for entry in removed:
            try:
                path = record_of_scores(self.kind(self.backend, entry)).get("path")
            except SourceError:
                continue
            if isinstance(path, str) and path and "://" not in path and "\0" not in path:
                found += left_over(path)
                found += [path] if version_of(path).get("id") == entry.version else []
        return sorted(set(found))


def record_of_scores(version: StoredVersion) -> Mapping[str, Any]:
    """The entry "scores" of a version's record, or {}."""
    scores = version.record.get("scores")
    return scores if isinstance(scores, dict) else {}


def _checked_scores(scores: Any, result: Result) -> Any:
    shape, k = getattr(scores, "shape", None), result.n_components
    if shape is None or len(shape) != 2 or shape[1] != k:
        raise InvalidInputError(f"scores of shape {shape}; expected (rows, {k})")
    return scores


def load(path: str | os.PathLike[str], version: int | str | None = None) -> Estimator:
    """A saved model, or the promoted model of a model store, as a fitted estimator.

    version : of a model store, another one: its number, its id, the beginning of its id, or an
        alias such as "challenger".

    Every file is checked against its digest. Raises SourceError if one is absent or altered, or the
    format is not the one that this version reads; InvalidInputError for a version that is not
    there.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> X = np.random.default_rng(0).standard_normal((50, 4))
    >>> path = streampca.PCA(2).fit(X).save("model")
    >>> streampca.load("model").transform(X).shape
    (50, 2)
    """
    place = os.fspath(path)
    if "://" in place or not is_bundle(place):
        store = ModelStore(place)
        if store.exists():
            return store.load(version)
    if version is not None:
        raise InvalidInputError(
            f"{place} is no model store, so it has no version {version!r}; expected what "
            "ModelStore(...).publish or streampca refresh made"
        )
    return estimator_of(Result.load(place))
