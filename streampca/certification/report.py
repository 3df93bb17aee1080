"""What is found out about components, in numbers and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streampca.certification.bounds import Pairs
from streampca.errors import printable_name
from streampca.html import card, table, text
from streampca.kernels import Array
from streampca.passes import PassCost

TOL = 0.01  # radians
TINY = 1e-300
SOLVED = 1e-5  # of the variance: a residual that any solver may leave
CHANCE = 3.0  # times its expected norm that a residual by rounded digits may have
STANDS_OUT = 8.0  # times what rounding explains, from which an entry of the residual was altered
PRINTED = 1e-9  # relative rounding from which entries were printed with few digits
FEW = 10  # entries from which one can stand out
ALONE = 0.8  # share of a squared residual that few entries hold
OBLIQUE = 0.01  # cosine of two components
SHOWN = 3  # entries that are named


@dataclass(frozen=True, repr=False)
class Certification:
    """What :func:`certify` found. Arrays are (k,), variances in units of the prepared data.

    of : "loadings" or "scores".  convention : how the columns were prepared, in words.
    fits : by convention, the geometric mean of residual / variance of the components.
    variance : w'Cw of the component w.  variance_ratio : of the total.
    variance_bound : an eigenvalue is that near.  residual : |C w - variance w|.
    angle_bound : radians from the true component; pi/2 where nothing is proved.
    number : which component it is by the order of the variances.
    sure : ``angle_bound`` holds whatever was missed; else if no missed direction holds more than
        the last of these components.
    accepted : verdicts that are favourable.  words : the verdicts.
    beyond : the largest variance that a missed direction can hold.  beyond_by : what says so;
        random probes err once in a million draws.
    overlap : largest cosine with another component.
    digits : radians by which the rounding of its digits turns it.
    missing : cells without a value.
    remark : why none is accepted, "" where that is not so.
    cost : of each read.

    Examples
    --------
    >>> import numpy as np, streampca
    >>> X = np.diag([9.0, 6, 4, 2]) + 1
    >>> scores = np.linalg.svd(X - X.mean(axis=0))[0][:, :2]
    >>> found = streampca.certify(scores, X, kind="scores", scale=None)
    >>> found.certified, found.variance.round(2), found.number
    (True, array([22.15,  9.07]), array([1, 2]))
    """

    of: str
    convention: str
    fits: Mapping[str, float]
    variance: Array
    variance_ratio: Array
    variance_bound: Array
    residual: Array
    angle_bound: Array
    number: Array
    sure: Array
    accepted: Array
    words: tuple[str, ...]
    total_variance: float
    beyond: float
    beyond_by: str
    overlap: Array
    digits: Array
    missing: int
    remark: str = ""
    cost: list[PassCost] = field(default_factory=list)

    @property
    def certified(self) -> bool:
        """Whether all components are accepted."""
        return bool(self.accepted.all()) and not self.remark

    @property
    def verdict(self) -> str:
        """The verdict on all of them, in a sentence or two."""
        k, known = len(self.accepted), int(self.accepted.sum())
        if self.remark:
            return self.remark
        if known < k:
            wrong = [str(i + 1) for i in np.flatnonzero(~self.accepted)]
            first = self.words[int(wrong[0]) - 1]
            return (
                f"{k - known} of {k} components are not certified: {', '.join(wrong)}. "
                f"{first[0].upper()}{first[1:]}."
            )
        worst = float(self.angle_bound.max(initial=0.0))
        bound = f", to {worst:.1g} radians or better" if worst < 1.0 else ""
        if self.beyond <= float(self.variance.min(initial=np.inf)):
            return f"All {k} components are certified{bound}. No direction with more is missed."
        return (
            f"All {k} components are certified{bound}. A direction that was missed could hold a "
            f"variance up to {self.beyond:.4g} (by {self.beyond_by}; more passes narrow that)."
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The table of components, as text."""
        return [
            (
                str(i + 1),
                f"{self.variance[i]:.6g}",
                f"{self.variance_bound[i]:.1e}",
                f"{self.variance_ratio[i]:.4%}",
                f"{self.angle_bound[i]:.1e}" if self.angle_bound[i] < 1.0 else "not determined",
                "yes" if self.accepted[i] else "no",
                self.words[i],
            )
            for i in range(len(self.variance))
        ]

    HEAD = ("component", "variance", "+-", "share", "angle <=", "certified", "")

    def __repr__(self) -> str:
        rows = [self.HEAD, *self.rows()]
        widths = [max(len(row[j]) for row in rows) for j in range(len(self.HEAD) - 1)]
        lines = [
            "  ".join([*(f"{one:>{w}}" for one, w in zip(row, widths, strict=False)), row[-1]])
            for row in rows
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", *self.remarks(), self.verdict])

    def remarks(self) -> list[str]:
        """What was certified, line by line."""
        lines = [f"{self.of} of X, {self.convention}"]
        (_, fit), *others = sorted(self.fits.items(), key=lambda one: one[1])
        if others:
            name, other = others[0]
            lines.append(
                f"(of what was not stated this fits best, by residual / variance {fit:.1e}; "
                f"{name}: {other:.1e})"
            )
        if self.missing:
            lines.append(f"{self.missing} missing cells")
        lines.append(f"largest cosine of two components: {self.overlap.max():.1e}")
        return lines

    def _repr_html_(self) -> str:
        facts = [("of", text("; ".join(self.remarks())))]
        details = {"components": table(self.HEAD, self.rows())}
        return card("Certification", self.verdict, facts, details)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        names = ("variance", "variance_ratio", "variance_bound", "residual", "angle_bound")
        more = ("number", "sure", "accepted", "overlap", "digits")
        return {
            "certified": self.certified,
            "verdict": self.verdict,
            "of": self.of,
            "convention": self.convention,
            "fits": dict(self.fits),
            **{name: getattr(self, name).tolist() for name in (*names, *more)},
            "words": list(self.words),
            "total_variance": self.total_variance,
            "beyond": self.beyond,
            "beyond_by": self.beyond_by,
            "missing": self.missing,
        }


@dataclass(frozen=True)
class Verdicts:
    """How each of k vectors is judged.

    accepted : (k,).  words : of each.
    """

    accepted: Array
    words: tuple[str, ...]


def verdicts(
    pairs: Pairs, vectors: Array, halves: Array, tol: float, name: Callable[[int], str], of: str
) -> Verdicts:
    """Judge unit vectors (d, k).

    halves : (d, k) by how much each entry may be rounded.  name : of entry i.  of : "score" or
    "loading".
    """
    accepted, words = [], []
    explained = explained_residuals(pairs, halves)
    for i in range(len(pairs.value)):
        good, said = _verdict(pairs, i, float(explained[i]), tol)
        if altered := altered_entries(pairs, vectors, halves, i, float(explained[i])):
            good, said = False, _of_altered(altered, of, name)
        accepted.append(good)
        words.append(said)
    return Verdicts(np.array(accepted), tuple(words))


def explained_residuals(pairs: Pairs, halves: Array) -> Array:
    """(k,) the residual that independent rounding of the entries explains: CHANCE times its root
    mean square, and rounding of the products.

    (S - rho) d for an error d: along known eigenvectors by their values, elsewhere at most rho d.
    """
    squares = halves**2 / 3.0
    along = (pairs.vectors**2).T @ squares
    reach = np.subtract.outer(pairs.ritz, pairs.value) ** 2
    rest = pairs.value**2 * squares.sum(axis=0)
    return np.asarray(CHANCE * np.sqrt((reach * along).sum(axis=0) + rest) + 3.0 * pairs.floor)


def _verdict(pairs: Pairs, i: int, explained: float, tol: float) -> tuple[bool, str]:
    """Whether a component is accepted, and why, but for altered entries."""
    number, angle, residual = int(pairs.number[i]), float(pairs.angle_bound[i]), pairs.residual[i]
    value, missed = float(pairs.value[i]), int(pairs.missed[i])
    size = max(value, pairs.floor, TINY)
    if not pairs.distinct[i]:
        return False, "repeats those before it"
    within = f"within {angle:.1g} radians" if angle < 1.0 else "its direction is not determined"
    if not pairs.sure[i] and angle < 1.0:
        within += ", unless a direction was missed"
    if residual <= explained:
        said = f"correct as far as its digits tell: {within}"
    elif residual <= SOLVED * value:
        said = f"correct to {residual / size:.0e} of its variance: {within}"
    elif angle <= tol:
        said = f"approximate: {within}"
    else:
        known = "" if angle >= 1.0 else f" ({within})"
        return False, (
            f"not shown to be a component{known}: |C w - variance w| is {residual / size:.1g} of "
            f"its variance, and its digits explain {explained / size:.1g}"
        )
    if missed:
        return False, (
            f"component {number} at best: at least {missed} with more variance "
            f"{'are' if missed > 1 else 'is'} missing"
        )
    if number != i + 1:
        return False, f"out of order: it is component {number}"
    if pairs.overlap[i] > OBLIQUE and not (pairs.sure[i] and angle <= tol):
        return False, f"not orthogonal to another one (a cosine of {pairs.overlap[i]:.2g})"
    return True, said


def altered_entries(
    pairs: Pairs, vectors: Array, halves: Array, i: int, explained: float
) -> list[tuple[int, float, float]]:
    """(entry, its value, about what it should be) of entries that rounding does not explain though
    it explains most.

    An entry that is off by d leaves (S_jj - rho) d there and little elsewhere. A solver that
    stopped early leaves its error everywhere.
    """
    value, parts = float(pairs.value[i]), pairs.outside[:, i]
    sizes, residual = np.abs(parts), float(np.linalg.norm(parts))
    if residual <= 3.0 * pairs.floor or value <= 0.0 or len(sizes) < FEW:
        return []
    noise = float(np.median(sizes)) / 0.6745
    rest_of_trace = max(pairs.total - float(pairs.ritz.sum()), 0.0)
    diagonal = pairs.vectors**2 @ pairs.ritz + rest_of_trace / len(sizes)  # of S, about
    own = np.maximum(diagonal, 2.0 * value) * halves[:, i]
    found = np.flatnonzero(sizes > STANDS_OUT * (own + noise))
    rest = float(np.linalg.norm(np.delete(parts, found)))
    printed = np.linalg.norm(halves[:, i]) > PRINTED
    alone = rest**2 < (1.0 - ALONE) * residual**2 and residual > explained
    if not 0 < len(found) <= max(SHOWN, len(sizes) // 100) or not (
        alone or (printed and rest <= explained)
    ):
        return []
    found = found[np.argsort(-sizes[found])]
    apart = np.maximum(value - diagonal[found], 0.1 * value)
    wanted = vectors[found, i] + pairs.entries[found, i] / apart
    return list(zip(found.tolist(), vectors[found, i].tolist(), wanted.tolist(), strict=True))


def _of_altered(found: list[tuple[int, float, float]], of: str, name: Callable[[int], str]) -> str:
    """The verdict on altered entries, in words."""
    shown = []
    for j, value, wanted in found[:SHOWN]:
        sign = abs(value + wanted) < 0.3 * abs(value)
        ratio = f"should be about {wanted / value:.5g} times as large"
        shown.append(
            f"the {of} of {printable_name(name(j))} {'has the other sign' if sign else ratio}"
        )
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "altered: " + "; ".join(shown) + more
