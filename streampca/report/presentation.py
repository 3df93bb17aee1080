"""What pictures and reports show of a fitted model. Every kind of result fills in what it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import Labels

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class FeatureMap(NamedTuple):
    """Values of features, to be drawn over a grid.

    values : of indices of components, (components, p), NaN without observation.
    meaning : of the name of a variable, or None, what the values are.
    """

    values: Callable[[list[int]], Array]
    meaning: Callable[[str | None], str]


class Bars(NamedTuple):
    """values : (k,) one for each component.  name : what they are.  add_up : to 1 at most."""

    values: Array
    name: str
    add_up: bool


class Certainty(NamedTuple):
    """How sure components are.

    determined : (k,) whether the direction of each is.  bounds : (k,) on the errors of variances.
    floor : the rounding of the sums.  words : a sentence.  angles : (k,) bounds in radians.
    """

    determined: Array
    bounds: Array
    floor: float
    words: str
    angles: Array | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Presentation:
    """A fitted model as pictures and reports need it; what a kind does not have is None or empty.

    pictures : those that a model of this kind has, for messages.
    component : the name of a component, before its number.  remarks : (k,) on each, in brackets.
    scores : (n, k) of the rows of the fit, where it kept them.  makes_scores : the argument that
        gives a picture scores, "" where rows have none.
    arrange : scores of a caller -> components in the order of the model.
    deviations : (k,) of the scores; None: those of the scores that are drawn.
    shares : (k,) of the total variance.  bars : of a scree plot, where they are not these.
    carries : of indices of components, what they carry, in words; "" where that is not known.
    variances : (k,), and variances_name what they are; certainty and noise_variance of these.
    mean : (p,).  components_of : makes the (k, p) unit vectors, when they are drawn.
    own_loadings : (k, p) where loadings are not unit vectors times the roots of the variances, and
        loadings_name what they are.
    correlations : of indices, (components, p) correlations of features with components.
    maps : the kinds of maps by name, the usual one first.
    insignificant : (k, p) True where a map does not differ from 0, where that is known.
    left_out : numbers of the features without a part in the model, by cause.
    largest_feature : makes (name, share) of the one with most of the total variance, where
        features were neither scaled nor weighted.
    findings : makes sentences on what a few samples do to the components.
    provenance : of the result.  chosen : (rank, penalty) of a completion.
    view : "x" or "y" of a model of two views, and other the presentation of the second one, where
        both are shown.
    """

    method: str
    labels: Labels
    n_components: int
    pictures: str
    component: str = "PC"
    remarks: tuple[str, ...] = ()
    scores: Array | None = None
    makes_scores: str = "scores=model.transform(X)"
    arrange: Callable[[Any], Any] = lambda scores: scores
    deviations: Array | None = None
    shares: Array | None = None
    bars: Bars | None = None
    carries: Callable[[Sequence[int]], str] = lambda indices: ""
    variances: Array | None = None
    variances_name: str = "Variance"
    certainty: Certainty | None = None
    noise_variance: float = 0.0
    mean: Any = None
    components_of: Callable[[], Array] | None = None
    own_loadings: Array | None = None
    loadings_name: str = "Loading on"
    correlations: Callable[[list[int]], Array] | None = None
    maps: Mapping[str, FeatureMap] = field(default_factory=dict)
    insignificant: Array | None = None
    left_out: Mapping[str, Array] = field(default_factory=dict)
    largest_feature: Callable[[], tuple[str, float] | None] = lambda: None
    findings: Callable[[], list[str]] = list
    provenance: Mapping[str, Any] = field(default_factory=dict)
    chosen: tuple[int, float] | None = None
    view: str | None = None
    other: Presentation | None = None

    @property
    def n_features(self) -> int:
        """p."""
        return len(self.labels.features)

    @cached_property
    def components(self) -> Array:
        """(k, p) unit vectors. Raises InvalidInputError where such a model has none."""
        return self.required(self.components_of, "loadings")()

    def loadings(self, index: int) -> Array:
        """(p,) on one component. Raises InvalidInputError where such a model has none."""
        if self.own_loadings is not None:
            return np.asarray(self.own_loadings[index], dtype=np.float64)
        row = np.asarray(self.components[index], dtype=np.float64)
        return np.asarray(row * np.sqrt(self.required(self.variances, "variances")[index]))

    def required(self, value: T | None, what: str) -> T:
        """The value. Raises InvalidInputError where a model of this kind has no such thing."""
        if value is None:
            raise InvalidInputError(f"a {self.method} has no {what} to draw; draw {self.pictures}")
        return value

    def short_name(self, index: int, component: str | None = None) -> str:
        """``PC1``.  component : instead of the name of components."""
        return f"{self.component if component is None else component}{index + 1}"

    def name(self, index: int, component: str | None = None) -> str:
        """``PC1 (12.3 %)``."""
        remark = f" ({self.remarks[index]})" if self.remarks else ""
        return self.short_name(index, component) + remark

    @property
    def scree(self) -> Bars:
        """The bars of a scree plot. Raises InvalidInputError where such a model has none."""
        shares = self.required(self.shares, "shares of a variance") if self.bars is None else None
        return self.bars or Bars(np.asarray(shares), "Share of total variance", True)

    @property
    def plural(self) -> str:
        """What components are called, several of them."""
        return "components" if self.component == "PC" else f"{self.component.strip().lower()}s"

    # A completion: its candidates and its sweeps.

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """Ranks and penalties of a completion with their errors in held-out cells; that of the
        fit comes first, then those with the smallest errors."""
        found = [x for x in self.provenance.get("validation") or () if np.isfinite(x["held_out"])]
        return sorted(
            found, key=lambda x: ((x["rank"], x["penalty"]) != self.chosen, x["held_out"])
        )

    @cached_property
    def sweeps(self) -> Sweeps | None:
        """The sweeps of a completion; None of other fits."""
        trace = self.provenance.get("trace")
        if not trace:
            return None
        chosen = int(trace[-1]["chosen"])
        with_cells = [sweep for sweep in trace if np.isfinite(sweep["held_out"][chosen])] or trace
        shares = {}
        for name, key in (("objective", "penalised"), ("held-out error", "held_out")):
            values = np.array([sweep[key][chosen] for sweep in with_cells], dtype=np.float64)
            if np.isfinite(values).all() and (values > 0).all():
                shares[name] = values / values[0]
        return Sweeps(
            [sweep["number"] for sweep in with_cells],
            shares,
            with_cells[-1]["change"][chosen],
            trace[-1]["passes"],
            trace[-1]["change"][chosen],
        )


class Sweeps(NamedTuple):
    """numbers : of the sweeps, without those that use held-out cells too.

    shares : objective and held-out error after each, as shares of the first.  change : of the
    estimate in the last of these, as a share of its norm.  passes : of all sweeps, and last_change
    of the last of all.
    """

    numbers: list[int]
    shares: dict[str, Array]
    change: float
    passes: int
    last_change: float


@runtime_checkable
class Presentable(Protocol):
    """What pictures can be drawn of."""

    def presentation(self) -> Presentation:
        """What is shown of it."""


def percentages(shares: Array) -> tuple[str, ...]:
    """Shares as remarks on components."""
    return tuple(f"{100 * share:.1f} %" for share in shares)


def carried_share(shares: Array, of: str = "of the variance") -> Callable[[Sequence[int]], str]:
    """What components carry, in words: the sum of their shares."""
    return lambda indices: f"{100 * shares[list(indices)].sum():.1f} % {of}"
