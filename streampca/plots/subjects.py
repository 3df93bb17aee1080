"""What a picture is drawn of: a Decomposition, or what other kinds of models have of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from streampca.errors import InvalidInputError, InvalidTypeError, not_fitted
from streampca.matrix import AxisLabels, Labels
from streampca.models.results.decomposition import Decomposition
from streampca.models.results.result import Result

Array = np.ndarray[Any, Any]
VIEWS = ("x", "y")
NOTHING = np.zeros(0, np.int64)
OTHERS = {"verdict": "dimension", "curves": "baselines", "coordinates": "embedding"}
LACKS = {  # what a Decomposition has -> in words
    "explained_variance_ratio": "shares of a variance",
    "explained_variance": "variances",
    "require_components": "loadings",
    "structure": "covariances of features with components",
    "feature_variance": "variances of its features",
    "mean": "mean of its features",
    "scores": "single scores",
}


@dataclass(frozen=True, eq=False)
class Subject:
    """What pictures read of a model that is no Decomposition.

    names : of the components, with what they carry.  instead : pictures to draw of such a model.
    has : values under the names that they have in a Decomposition; what is not here is refused.
    carries : a function from indices of components to what they carry, in words; "" for nothing.
    shares : (k,) heights of a scree plot, what they are, and the largest possible one.
    fields : kind of map -> (its (k, p) values, what they are).
    """

    method: str
    labels: Labels
    names: tuple[str, ...]
    instead: str
    has: Mapping[str, Any]
    carries: Callable[[list[int]], str] = lambda indices: ""
    shares: tuple[Array, str] | None = None
    fields: Mapping[str, tuple[Array, str]] = field(default_factory=dict)
    loading: str = "Loading on"
    value: str = "Variance"
    scores_from: str = "scores=model.transform(X)"

    @property
    def n_components(self) -> int:
        return len(self.names)

    @property
    def n_features(self) -> int:
        return len(self.labels.features)

    @property
    def provenance(self) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Any:
        has = vars(self)["has"]
        if name in has:
            return has[name]
        if name in LACKS:
            raise InvalidInputError(
                f"a {self.method} has no {LACKS[name]} to draw; draw {self.instead}"
            )
        raise AttributeError(name)


def result_of(source: Any, view: str | None = None) -> Any:
    """A Decomposition, or that of a fitted estimator; of another kind of model its Subject.

    view : "x" or "y" of a model of two views.
    Raises NotFittedError, InvalidInputError, InvalidTypeError.
    """
    result = source if isinstance(source, Result) else getattr(source, "result_", None)
    if isinstance(result, Result) and not isinstance(source, type):
        if view is not None and result.kind != "two-view":
            raise InvalidInputError(f"view={view!r}: a {result.method} has one view; leave it out")
        return result if isinstance(result, Decomposition) else _subject_of(result, view)
    if hasattr(source, "amplitude") and hasattr(source, "phase"):
        return _complex_subject(source)
    if hasattr(source, "fit") and not isinstance(source, type):
        raise not_fitted(type(source).__name__)
    for mark, picture in OTHERS.items():
        if hasattr(source, mark) and not isinstance(source, type):
            name = type(source).__name__
            raise InvalidTypeError(f"this picture shows no {name}; draw plots.{picture}(found)")
    raise InvalidTypeError(
        f"got {_kind(source)}; expected a fitted estimator or a Decomposition: PCA().fit(X)"
    )


def has_result(source: Any) -> bool:
    """Whether ``result_of`` applies: to a result, any estimator, and what others return."""
    known = ("fit", "amplitude", *OTHERS)
    return isinstance(source, Result) or any(hasattr(source, one) for one in known)


def is_pair(source: Any) -> bool:
    """Whether this is a fitted model of two views, or its result."""
    return getattr(getattr(source, "result_", source), "kind", "") == "two-view"


def _kind(source: Any) -> str:
    return f"the class {source.__name__}" if isinstance(source, type) else type(source).__name__


def _subject_of(result: Any, view: str | None) -> Subject:
    makers = {
        "two-view": lambda: view_subject(result, view),
        "kernel model": lambda: _kernel_subject(result),
        "kernel model on landmarks": lambda: _landmark_subject(result),
        "sparse components": lambda: _sparse_subject(result),
        "regression": lambda: _regression_subject(result),
    }
    if result.kind in makers:
        return makers[result.kind]()
    names = tuple(f"Direction {i + 1}" for i in range(result.n_components))
    drawn = "plots.scores(model, scores=model.transform(X)), or plots.pairs"
    return Subject(result.method, result.labels, names, drawn, {"scores": result.scores})


# Two views: each by itself, and both.


def view_subject(result: Any, view: str | None) -> Subject:
    """One view of a model of two: its loadings are correlations."""
    view = VIEWS[0] if view is None else view
    if view not in VIEWS:
        raise InvalidInputError(f"view={view!r}; expected 'x' or 'y'")
    values, absent = np.asarray(result.values), result.view(view).absent
    scores = getattr(result, f"{view}_scores")
    tables = {
        "homogeneous": (result.loadings, f"correlation with scores of {view.upper()}"),
        "heterogeneous": (
            result.cross_loadings,
            f"correlation with scores of {VIEWS[view == 'x'].upper()}",
        ),
        "weights": (result.vectors, "weight"),
    }
    fields = {
        kind: (_without(result.part(view, table).T, absent), what)
        for kind, (table, what) in tables.items()
    }
    maps = fields["homogeneous"][0]
    cca = result.method == "CCA"
    shares = values if cca else values**2 / (result.total or 1.0)
    certain = np.asarray(result.bound) < np.maximum(values, 1e-300)
    has = {
        "scores": scores,
        "require_components": lambda: np.nan_to_num(maps),
        "explained_variance": values,
        "noise_variance": 0.0,
        "dropped": absent,
        "constant": NOTHING,
        "certificate": SimpleNamespace(
            determined=certain,
            variance_bound=np.where(certain, result.bound, 0.0),
            floor=0.0,
            in_words=lambda: (
                f"{result.method}: {len(values)} pairs of combinations, the first of "
                f"{values[0]:.3g}"
                if len(values)
                else f"{result.method}: no pair"
            ),
        ),
    }

    def carries(indices: list[int]) -> str:
        if cca:
            return "canonical correlations " + ", ".join(f"{values[i]:.2f}" for i in indices)
        return f"{100 * shares[indices].sum():.1f} % of the squared covariance"

    return Subject(
        result.method,
        result.labels_of(view),
        tuple(pair_name(result, i) for i in range(len(values))),
        "plots.scores (X against Y), plots.pcs, plots.loadings(model, view='x'), plots.map(model, "
        "kind='heterogeneous', view='y'), plots.correlation_circle or plots.scree",
        has,
        carries,
        (shares, "Canonical correlation" if cca else "Share of the squared covariance"),
        fields,
        f"{view.upper()}: correlation with",
        "Canonical correlation" if cca else "Singular value of the covariance",
        "scores=model.transform(X, Y)",
    )


def pair_name(result: Any, index: int) -> str:
    """``Pair 1 (r = 0.93)``, or its share of the squared covariance."""
    value = float(result.values[index])
    if result.method == "CCA":
        return f"Pair {index + 1} (r = {value:.2f})"
    return f"Pair {index + 1} ({100 * value**2 / (result.total or 1.0):.1f} %)"


def _without(values: Array, absent: Array) -> Array:
    found = np.array(values, dtype=np.float64)
    found[:, absent] = np.nan
    return found


# Models of one matrix.


def _shares_of(found: Array) -> Callable[[list[int]], str]:
    return lambda indices: f"{100 * found[indices].sum():.1f} % of the variance"


def _kernel_subject(result: Any) -> Subject:
    names = tuple(f"PC{i + 1}" for i in range(result.n_components))
    has = {
        "scores": result.fitted_scores,
        "certificate": None,
        "noise_variance": 0.0,
        "explained_variance": result.eigenvalues / max(result.n_samples, 1),
    }
    drawn = "plots.scores, plots.pairs, plots.pcs or plots.spectrum"
    return Subject(result.method, result.labels, names, drawn, has)


def _landmark_subject(result: Any) -> Subject:
    shares = result.explained_variance_ratio
    names = tuple(f"PC{i + 1} ({100 * share:.1f} %)" for i, share in enumerate(shares))
    has = {
        "scores": result.scores,
        "certificate": None,
        "noise_variance": 0.0,
        "explained_variance": result.eigenvalues / max(result.n_samples, 1),
        "explained_variance_ratio": shares,
    }
    drawn = "plots.scores(model, scores=model.transform(X)), plots.scree or plots.spectrum"
    return Subject(
        result.method,
        result.labels,
        names,
        drawn,
        has,
        _shares_of(shares),
        (shares, "Share of total variance"),
    )


def _sparse_subject(result: Any) -> Subject:
    shares = result.explained_variance_ratio
    names = tuple(f"PC{i + 1} ({100 * share:.1f} %)" for i, share in enumerate(shares))
    components = _without(result.components, result.dropped)
    has = {
        "scores": result.scores,
        "certificate": None,
        "noise_variance": 0.0,
        "explained_variance": result.explained_variance,
        "explained_variance_ratio": shares,
        "require_components": lambda: result.components,
        "mean": result.mean,
        "dropped": result.dropped,
        "constant": NOTHING,
    }
    drawn = "plots.loadings, plots.scree or plots.scores(model, scores=model.transform(X))"
    return Subject(
        result.method,
        result.labels,
        names,
        drawn,
        has,
        _shares_of(shares),
        (shares, "Share of total variance"),
        {"eof": (components, "loading (unit vector)")},
    )


def _regression_subject(result: Any) -> Subject:
    names = tuple(f"response {i + 1}" for i in range(result.n_components))
    coef = np.asarray(result.coef).T
    has = {"require_components": lambda: coef, "dropped": NOTHING, "constant": NOTHING}
    drawn = "plots.loadings, which shows its coefficients"
    return Subject(
        result.method,
        result.labels,
        names,
        drawn,
        has,
        loading="Coefficient of",
        fields={"coefficients": (coef, "coefficient")},
    )


def _complex_subject(modes: Any) -> Subject:
    shares = np.asarray(modes.explained_variance_ratio)
    names = tuple(f"Mode {i + 1} ({100 * share:.1f} %)" for i, share in enumerate(shares))
    features: AxisLabels = modes.features
    absent = np.flatnonzero(np.isnan(modes.components).any(axis=0))
    has = {
        "scores": modes.scores,
        "certificate": None,
        "noise_variance": 0.0,
        "dropped": absent,
        "explained_variance": modes.explained_variance,
        "explained_variance_ratio": shares,
    }
    fields = {
        "amplitude": (modes.amplitude, "amplitude (unit vector)"),
        "phase": (np.rad2deg(modes.phase), "phase [degrees]"),
    }
    drawn = (
        "plots.map(modes, kind='amplitude'), plots.map(modes, kind='phase'), plots.pcs, plots.scree"
    )
    return Subject(
        "Hilbert EOF",
        Labels(modes.samples, features),
        names,
        drawn,
        has,
        _shares_of(shares),
        (shares, "Share of total variance"),
        fields,
        scores_from="modes = complex_modes(model, analytic(X))",
    )


# What titles say of either.


def carried(found: Any, indices: list[int]) -> str:
    """What some components carry, in words; "" where nothing is known."""
    if isinstance(found, Subject):
        return found.carries(indices)
    return f"{100 * found.explained_variance_ratio[indices].sum():.1f} % of the variance"


def component_name(index: int, found: Any, what: str = "PC") -> str:
    """``PC1 (12.3 %)``."""
    if isinstance(found, Subject):
        return found.names[index]
    return f"{what}{index + 1} ({100 * found.explained_variance_ratio[index]:.1f} %)"


def loadings_of(found: Any, index: int) -> Array:
    """(p,) loadings on one component; of two views correlations, of a regression coefficients."""
    row = np.asarray(found.require_components()[index], dtype=np.float64)
    if isinstance(found, Subject) and found.loading != "Loading on":
        return np.asarray(row)
    return np.asarray(row * np.sqrt(found.explained_variance[index]))


def has_correlations(found: Any) -> Any:
    """The found, if its features have correlations with components. Raises InvalidInputError."""
    if not (isinstance(found, Subject) and "homogeneous" in found.fields):
        _ = found.feature_variance
    return found


def correlations_of(found: Any, index: int) -> Array:
    """(p,) correlations of the features with one component; 0 where a feature does not vary."""
    if isinstance(found, Subject) and "homogeneous" in found.fields:
        return np.asarray(np.nan_to_num(found.fields["homogeneous"][0][index]))
    if found.feature_variance is None:
        raise InvalidInputError(
            "this model was saved without the variances of its features; fit it again"
        )
    deviation = np.sqrt(np.maximum(np.asarray(found.feature_variance), 0.0))
    deviation[found.constant] = 0.0
    units = 1.0 if found.divisors is None else found.divisors
    row = loadings_of(found, index) * units
    return np.asarray(np.divide(row, deviation, out=np.zeros_like(row), where=deviation > 0))
