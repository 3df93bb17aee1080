"""The fitted result: frozen arrays, labels, settings and where it all came from."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from streampca.errors import InvalidInputError, SourceError
from streampca.kernels import Array
from streampca.matrix import (
    AxisLabels,
    ChunkedMatrix,
    Column,
    Labels,
    Preprocessing,
    component_axis,
    weighted_divisors,
)
from streampca.models.design import Design
from streampca.models.eof_views import EofViews
from streampca.models.named_columns import removable
from streampca.models.pca.gram_outputs import read_components
from streampca.models.result_views import dataset_of, spectrum_table
from streampca.models.saved_labels import labels_from_saved, labels_to_saved, plain
from streampca.models.saved_result import check_result
from streampca.solvers import Certificate, TracyWidom, tracy_widom_test
from streampca.store import read_bundle, understood, write_bundle


@dataclass(frozen=True, repr=False)
class Decomposition:
    """What a fit found. Saved, plotted, compared and applied as it is.

    components : (k, p) orthonormal rows, or None (a wide fit with ``components=False``).
    explained_variance : (k,) descending.  total_variance : of all components, kept or not.
    mean : (p,).  scale : (p,) divisors, 0 = a constant column; None = not scaled.
    scores : (n, k) of the training rows, where the fit has them (wide fits); else None.
    n_samples : rows of the fit, 0 where they are not known (a covariance alone).
    dropped : indices of features without any observation.  constant : of those that never vary.
    filtered : of those left out for their frequency, missing share or weight of 0.
    weights : (p,) that multiplied the centred and scaled features, or None.
    row_mean, row_scale : (n,) of the samples of the fit, beside those of the features; or None.
    Where the fit streamed its components, what it knows of each feature lies beside them: such
    fields are a :class:`Column`, which is read when it is asked for (``np.asarray(result.mean)``).
    design : what was projected out of the samples, or None.  removed : (r, p) the coefficients of
        its basis; those of its columns are ``removed_coefficients``.
    """

    method: str
    explained_variance: Array
    total_variance: float
    mean: Array
    n_samples: int
    ddof: int
    rank: int
    components: Array | None = None
    scale: Array | None = None
    scores: Array | None = None
    spectrum: Array | None = None  # (m,) all eigenvalues, where the solver made them
    dropped: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    constant: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    filtered: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    missing: Array | None = None  # (p,) missing cells of each feature among the rows of the fit
    labels: Labels = field(default_factory=lambda: Labels.plain((0, 0)))
    certificate: Certificate | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 0.0  # sum of the row weights (the number of rows without weights)
    total_squares: float = float("nan")  # sum of the squares of all variances, kept or not
    missing_by_sample: Array | None = None  # (n,) missing cells of each row, in all p features
    feature_variance: Array | None = None  # (p,) in the units of the data
    feature_mean: Array | None = None  # (p,) of the data, where ``mean`` is 0 (not subtracted)
    weights: Array | None = None
    fitted: Array | None = None  # (n,) True for the rows of the fit, where others are scored too
    design: Design | None = None
    removed: Array | None = None
    row_mean: Array | None = None
    row_scale: Array | None = None

    documented: ClassVar[tuple[str, ...]] = (
        "method",
        "total_variance",
        "n_samples",
        "ddof",
        "rank",
        "settings",
        "provenance",
        "plan",
        "weight",
        "total_squares",
    )  # what is saved as JSON
    kind: ClassVar[str] = "model"
    kinds: ClassVar[dict[str, type[Decomposition]]] = {}  # by what a saved one calls itself

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
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
        """The kind of estimator that this loads as; see :mod:`streampca.models.registry`."""
        return self.method.removesuffix(" from covariance")

    @property
    def n_components(self) -> int:
        """k."""
        return len(self.explained_variance)

    @property
    def n_features(self) -> int:
        """p, dropped and constant features included."""
        return len(self.mean)

    @property
    def n_features_used(self) -> int:
        """Features that have observations, vary, and were not filtered."""
        return self.n_features - len(self.dropped) - len(self.constant) - len(self.filtered)

    @property
    def eof(self) -> EofViews:
        """EOFs, PCs, correlation and covariance maps, sampling errors: views for climate data."""
        return EofViews(self)

    @property
    def preprocessing(self) -> Preprocessing:
        """What made the rows of the fit from raw ones, and makes new rows; often nothing."""
        return self.labels.preprocessing

    @property
    def component_axis(self) -> AxisLabels:
        """The axis of the components in labelled results, counted from 1."""
        return component_axis(self.n_components, self.labels.samples, self.labels.features)

    @property
    def rank_is_exact(self) -> bool:
        """Whether ``rank`` is the rank; where not all values were computed it may be a lower
        bound: all of those that are known stand above rounding."""
        return self.spectrum is not None or self.rank <= self.n_components

    @property
    def divisors(self) -> Array | None:
        """(p,) divisors of the columns, 0 for those that the model leaves out; None: nothing is.

        ``scale`` over ``weights``, or, where nothing was scaled, 1 and 0 for features without any
        observation.
        """
        if self.weights is None and (self.scale is not None or not len(self.dropped)):
            return None if self.scale is None else np.asarray(self.scale)
        divisors = np.ones(self.n_features) if self.scale is None else np.array(self.scale)
        if self.weights is not None:
            divisors = weighted_divisors(divisors, self.weights)
        divisors[self.dropped] = 0.0
        return divisors

    def design_rows(self, matrix: ChunkedMatrix, remove: Any = None) -> Array | None:
        """(n, r) the basis of what was removed, at the samples of a matrix; None where nothing is.

        remove : the arrays among it, or False; columns that the fit had by name are those of the
            same name. Raises InvalidInputError.
        """
        if remove is False:
            return None
        if self.design is not None:
            return self.design.rows(matrix.labels.samples, remove, removable(matrix))
        if remove is None:
            return None
        raise InvalidInputError(
            "this fit removed nothing; fit with PCA(remove=...), or leave remove out here"
        )

    @property
    def removed_coefficients(self) -> Array:
        """(c, p) what each column of the design (``design.names``) adds to every feature, per unit
        and beside the mean; of columns that repeat each other the smallest that do."""
        if self.design is None or self.removed is None:
            return np.zeros((0, self.n_features))
        return np.asarray(self.design.turn @ self.removed)

    @property
    def n_dimensions(self) -> int:
        """Dimension of the space that is modelled: unscaled constant features belong to it."""
        divisors = self.divisors
        return self.n_features if divisors is None else int(np.count_nonzero(divisors))

    @property
    def explained_variance_ratio(self) -> Array:
        """(k,) share of the total variance."""
        if self.total_variance <= 0:
            return np.zeros(self.n_components)
        return np.asarray(self.explained_variance / self.total_variance)

    @property
    def singular_values(self) -> Array:
        """(k,) of the centred (and scaled) matrix."""
        freedom = max(self.weight - self.ddof, 0.0)
        return np.asarray(np.sqrt(self.explained_variance * freedom))

    def tracy_widom(self) -> TracyWidom:
        """Significance of each component: statistic, p-value, effective number of features."""
        return tracy_widom_test(
            self.explained_variance,
            total=self.total_variance,
            squares=self.total_squares,
            count=min((self.n_samples or self.n_features + 1) - 1, self.n_features_used),
        )

    @property
    def noise_variance(self) -> float:
        """Mean variance of the directions left out (Tipping and Bishop 1999, eq. 3.8)."""
        left = min(self.n_samples or self.n_dimensions, self.n_dimensions) - self.n_components
        if left <= 0:
            return 0.0
        return max(float(self.total_variance - np.sum(self.explained_variance)), 0.0) / left

    @property
    def loadings(self) -> Array:
        """(p, k) components scaled by the square root of their variance."""
        return np.asarray(self.require_components().T * np.sqrt(self.explained_variance))

    @property
    def projectors(self) -> Array:
        """(k, p) what makes scores of standardised rows: the components, unless rotated."""
        return self.require_components()

    @property
    def structure(self) -> Array:
        """(p, k) covariance of standardised features with scores of unit variance."""
        return self.loadings

    def rotate(
        self,
        method: str = "varimax",
        k: int | None = None,
        *,
        normalize: bool = True,
        power: float = 4.0,
    ) -> Any:
        """The first k components rotated by "varimax" or "promax": ``streampca.rotate``."""
        rotated: Any = self.kinds["rotated model"]
        return rotated.of(self, method, k, normalize=normalize, power=power)

    def permuted_parts(self, order: Array, sign: Array) -> dict[str, Any]:
        """What a kind of result has of each component beside the fields of all, permuted too."""
        return {}

    def require_components(self) -> Array:
        """The components; those that the fit streamed to Zarr are read from there each time.

        Raises the error that says how to get them, SourceError where they are not there any more.
        """
        if self.components is None:
            if (path := self.settings.get("loadings")) is not None:
                try:
                    return read_components(path, self)
                except (SourceError, InvalidInputError) as error:
                    raise type(error)(
                        f"the components of this fit were streamed to {path}, and are read from "
                        f"there: {error}. Elsewhere: result.with_components(path); streampca "
                        "project --loadings PATH"
                    ) from None
            raise InvalidInputError(
                "this fit has scores but no components (components=False saved the second pass); "
                "fit again with components=True"
            )
        return self.components

    def with_components(self, path: str | os.PathLike[str]) -> Decomposition:
        """This result with the components that its fit streamed to Zarr (``loadings=``), in memory.

        Raises SourceError where they are not there, InvalidInputError where they are of another.
        """
        return replace(self, components=read_components(path, self))

    def top_features(self, component: int = 0, n: int = 10) -> list[tuple[str, float]]:
        """The n features with the largest |loading| on a component (0 = the first), by name."""
        deviation = np.sqrt(self.explained_variance[component])
        column = self.require_components()[component] * deviation
        order = np.argsort(-np.abs(column), kind="stable")[:n]
        return [(self.labels.features.name(int(i)), float(column[i])) for i in order]

    def table(self, rows: int = 10) -> str:
        """The leading part of the spectrum as text."""
        return spectrum_table(self, rows)

    def __repr__(self) -> str:
        return f"<Decomposition: {self._headline()}>"

    def __str__(self) -> str:
        return f"{self._headline()}\n{self.table()}"

    def _headline(self) -> str:
        rows = self.n_samples or "an unknown number of"
        return (
            f"{self.method}: {self.n_components} components of {rows} samples x "
            f"{self.n_features} features"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_xarray(self) -> Any:
        """Everything with its labels, as an xarray.Dataset: stacked dimensions are unstacked.

        ``components`` (component, feature dimensions), ``mean``, ``explained_variance``,
        ``explained_variance_ratio`` and, where the fit has them, ``scores``. Components count
        from 1. Features without any observation are NaN. A fit of several variables gives
        ``components_sst``, ``mean_sst`` and so on. A genotype fit adds ``eigenvalues``,
        ``eigenvectors``, ``frequency`` of the counted allele (a coordinate of the variants) and
        ``observed_alleles`` behind it, ``used`` variants, ``tracy_widom_p``,
        ``missing_by_sample`` and, where others were scored too, the ``fitted`` samples.
        """
        return dataset_of(self)

    # -- at rest ------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a directory: Zarr arrays with checksums and JSON, whole or not at all."""
        return write_bundle(path, *self.to_saved())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Decomposition:
        """Read what ``save`` wrote; every file is checked. Raises SourceError."""
        return cls.from_saved(*read_bundle(path), str(path))

    def to_saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """(arrays, JSON-ready document): all of it, for a bundle."""
        arrays = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if isinstance(getattr(self, one.name), (np.ndarray, Column))
        }
        columns, labels = labels_to_saved(self.labels)
        arrays |= columns
        document = {name: plain(getattr(self, name)) for name in self.documented}
        document["certificate"] = self.certificate and self.certificate.to_dict()
        document["design"] = self.design and self.design.to_dict()
        arrays |= {} if self.design is None else self.design.arrays()
        return arrays, {**document, "labels": labels, "kind": self.kind}

    @classmethod
    def from_saved(
        cls, arrays: dict[str, Array], document: dict[str, Any], where: str
    ) -> Decomposition:
        """The inverse of ``to_saved``.  where : for messages. Raises SourceError."""
        found = cls.kinds.get(str(document.pop("kind", None)))
        if found is None or not issubclass(found, cls):
            raise SourceError(f"{where} is not a model")
        with understood(where):
            document["labels"] = labels_from_saved(document["labels"], arrays)
            certificate, design = document.pop("certificate"), document.pop("design", None)
            document["design"] = design and Design.from_saved(design, arrays)
            known: dict[str, Any] = {**document, **arrays}
            made = found(
                **known,
                certificate=None if certificate is None else Certificate.from_dict(certificate),
            )
            check_result(made, where)
        return made


Decomposition.kinds[Decomposition.kind] = Decomposition
