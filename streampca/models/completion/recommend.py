"""What a completion of ratings answers by the ids of users and items: predictions, top lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streampca.errors import AbsentNamesWarning, InvalidInputError, warn_caller
from streampca.kernels import Array
from streampca.matrix import AxisLabels, Block
from streampca.models.completion.result import CompletedDecomposition
from streampca.models.completion.row_solve import RowSolve
from streampca.models.contract.request import whole_number
from streampca.models.results.row_maps import RowOptions
from streampca.passes import single_threaded_blas
from streampca.sources.tables.frames import column_names, is_frame

CELLS = 1 << 22  # users x items that are ranked at a time
NONE = np.zeros(0, np.int64)  # no item
CHOICES = 10  # items that are recommended


class Places:
    """The numbers of ids along an axis. An id that is not there has the number -1."""

    def __init__(self, axis: AxisLabels) -> None:
        self.dim, self.ids = axis.dims[0], np.asarray(axis.coords[axis.dims[0]])
        self.whole = self.ids.dtype.kind in "iu"
        self._known = {one: place for place, one in enumerate(self.ids.tolist())}

    def of(self, ids: Any) -> Array:
        """(ids,) int64 of a sequence of ids."""
        listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        return np.array([self._known.get(self._key(one), -1) for one in listed], np.int64)

    def _key(self, one: Any) -> Any:
        if not self.whole:
            return str(one)
        try:
            whole = int(one)
        except (TypeError, ValueError, OverflowError):
            return None
        return whole if isinstance(one, str) or whole == one else None

    def id(self, place: int) -> Any:
        """The id at a place, as Python has it."""
        return self.ids[place].item() if self.whole else str(self.ids[place])


@dataclass(frozen=True)
class Rows:
    """Users by their model: factors (m, r), and what is added to and multiplied in their rows."""

    scores: Array
    level: Array  # (m,)
    scale: Array  # (m,)

    def part(self, where: slice) -> Rows:
        """Some of them."""
        return Rows(self.scores[where], self.level[where], self.scale[where])


class Ratings:
    """A fitted completion of ``open_ratings``, addressed by ids.

    An unknown user has the level that all have in common and no taste, an unknown item the mean of
    all items: what biases say of them.

    scores_at : (m, r) scores of users, by their places.  bounds : (low, high) of predictions.
    """

    def __init__(self, result: CompletedDecomposition, scores_at: Callable[[Array], Array]) -> None:
        if not result.of_ratings:
            raise InvalidInputError(
                "this model knows no users and items by their ids: it was not fitted to "
                "streampca.open_ratings(file, user=, item=, rating=). Use predict(rows, columns)"
            )
        self.result, self._scores_at = result, scores_at
        self.users, self.items = Places(result.labels.samples), Places(result.labels.features)
        loadings = result.require_components()
        self.loadings = loadings if result.divisors is None else loadings * result.divisors
        self.rated = np.ones(result.n_features, bool)  # items with a rating in the fit
        self.rated[result.dropped] = False
        self.common = float(result.mean[self.rated].mean()) if self.rated.any() else 0.0
        starts = result.seen_starts
        assert starts is not None
        self.active = np.diff(starts) > 0  # users with a rating in the fit

    # -- users and items ------------------------------------------------------------------------

    def rows(self, places: Array) -> Rows:
        """The users at these places; -1 is an unknown one."""
        known = places >= 0
        at = np.where(known, places, 0)
        scores = np.where(known[:, None], self._scores_at(at), 0.0)
        mean, scale = self.result.row_mean, self.result.row_scale
        level = np.where(known, 0.0 if mean is None else mean[at], 0.0)
        return Rows(scores, level, np.where(known, 1.0 if scale is None else scale[at], 1.0))

    def newcomer(self, ratings: Mapping[Any, float]) -> tuple[Rows, Array]:
        """(a user who is not in the fit, by these ratings; places of the rated items)."""
        places = self.items.of(ratings)
        if (places < 0).any():
            unknown = [str(rating) for rating, at in zip(ratings, places, strict=True) if at < 0]
            raise InvalidInputError(f"items that the fit has not seen: {', '.join(unknown[:5])}")
        order = np.argsort(places)
        values = np.array([float(rating) for rating in ratings.values()])[order]
        shape = (1, self.result.n_features)
        cells = (values, (np.zeros(len(values), np.int64), places[order]))
        block = Block(scipy.sparse.csr_matrix(cells, shape), 0, 0, 1, absent=True)
        solve: RowSolve = self.result.scores_of(RowOptions())
        factors, r = solve.factors(block), self.result.n_components
        level, scale = np.zeros(1), np.ones(1)
        if solve.bias is not None:
            level = factors[:, r]
        elif solve.about_rows:
            level, scale = block["row_center"], block["row_scale"]
        return Rows(factors[:, :r], level, scale), places

    # -- cells ----------------------------------------------------------------------------------

    def predict(self, users: Array, items: Array) -> Array:
        """(cells,) by places, -1 of what is unknown; not clipped."""
        rows = self.rows(users)
        known = items >= 0
        at = np.where(known, items, 0)
        taste = np.einsum("ij,ji->i", rows.scores, self.loadings[:, at])
        mean = np.where(known, self.result.mean[at], self.common)
        return np.asarray(np.where(known, taste, 0.0) * rows.scale + rows.level + mean)

    def whole(self, rows: Rows) -> Array:
        """(m, p) all items for some users; not clipped."""
        with single_threaded_blas():
            found = rows.scores @ self.loadings
        found *= rows.scale[:, None]
        found += rows.level[:, None]
        found += self.result.mean
        return np.asarray(found)

    def seen(self, place: int) -> Array:
        """The items that a user of the fit has rated."""
        starts, items = self.result.seen_starts, self.result.seen_items
        assert starts is not None
        assert items is not None
        return items[starts[place] : starts[place + 1]] if place >= 0 else items[:0]

    def best(self, places: Array, n: int, seen: bool = False) -> Iterator[tuple[Array, Array]]:
        """((n,) items, (n,) values) of each user, best first; equal ones by place.

        Cost: r p flops a user; memory of 4 million cells.
        """
        most = max(1, CELLS // max(1, self.result.n_features))
        for start in range(0, len(places), most):
            some = places[start : start + most]
            values = self.whole(self.rows(some))
            for value, place in zip(values, some.tolist(), strict=True):
                yield self.leading(value, NONE if seen else self.seen(place), n)

    def leading(self, values: Array, without: Array, n: int) -> tuple[Array, Array]:
        """The best n of (p,) values, without some items, and those that nobody has rated."""
        open_ = self.rated.copy()
        open_[without] = False
        ranked = np.where(open_, values, -np.inf)
        count = min(n, int(open_.sum()))
        if count < len(ranked):
            edge = np.partition(ranked, len(ranked) - count)[len(ranked) - count] if count else 0.0
            chosen = np.flatnonzero(ranked >= edge) if count else np.zeros(0, np.int64)
        else:
            chosen = np.arange(len(ranked))
        order = chosen[np.argsort(-ranked[chosen], kind="stable")][:count]
        return order, values[order]

    # -- answers --------------------------------------------------------------------------------

    def recommend(self, user: Any, n: int, seen: bool, bounds: Any) -> Any:
        """What ``recommend`` of a model returns."""
        whole_number("n", n)
        if isinstance(user, Mapping):
            rows, rated = self.newcomer(user)
            found = self.leading(self.whole(rows)[0], NONE if seen else rated, n)
            return self._listed(*found, bounds)
        several = isinstance(user, (list, tuple, np.ndarray, range))
        ids = list(user) if several else [user]
        places = self.users.of(ids)
        if unknown := [str(one) for one, at in zip(ids, places, strict=True) if at < 0]:
            warn_caller(
                f"{len(unknown)} of {len(ids)} users have no rating in the fit "
                f"({', '.join(unknown[:3])}): their items are those that all like most. With some "
                "ratings of a new user: recommend({item: rating, ...})",
                AbsentNamesWarning,
            )
        lists = [self._listed(*one, bounds) for one in self.best(places, n, seen)]
        return dict(zip(ids, lists, strict=True)) if several else lists[0]

    def _listed(self, items: Array, values: Array, bounds: Any) -> list[tuple[Any, float]]:
        shown = values if bounds is None else np.clip(values, *bounds)
        return [(self.items.id(i), float(v)) for i, v in zip(items, shown, strict=True)]

    def similar(self, item: Any, n: int) -> list[tuple[Any, float]]:
        """What ``similar_items`` of a model returns."""
        place = int(self.items.of([item])[0])
        if place < 0 or not self.rated[place]:
            raise InvalidInputError(f"item {item!r} has no rating in the fit")
        if not self.result.n_components:
            raise InvalidInputError(
                "the fit kept no component: by its held-out cells biases alone predict best, and "
                "of these all items are alike. More ratings, or rank= without 0, find components"
            )
        v = (self.loadings * self.result.singular_values[:, None]).T
        v = v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-300)
        with single_threaded_blas():
            cosines = v @ v[place]
        return self._listed(*self.leading(cosines, np.array([place]), n), (-1.0, 1.0))


# Pairs of ids, in the forms in which people have them.


def pairs_of(known: Ratings, users: Any, items: Any) -> tuple[Array, Array] | None:
    """Places of (user, item) pairs; None where ``users`` is a matrix of rows.

    users, items : ids, of the same length; or, instead of both, a list of pairs, or a frame that
        has the columns of users and items.
    """
    if items is not None:
        users, items = (_listed(one) for one in (users, items))
    elif is_frame(users):
        names = [str(name) for name in column_names(users)]
        if known.users.dim not in names or known.items.dim not in names:
            return None
        users, items = (_column(users, one.dim) for one in (known.users, known.items))
    elif isinstance(users, (list, tuple)) and all(
        isinstance(user, tuple) and len(user) == 2 for user in users
    ):
        users, items = ([user[i] for user in users] for i in (0, 1))
    elif isinstance(users, (list, tuple)) and any(isinstance(user, str) for user in users):
        raise InvalidInputError(
            f"{users!r:.60}; expected pairs of ids, predict([(user, item), ...]), or the ids of "
            "each, predict(users, items)"
        )
    else:
        return None
    if len(users) != len(items):
        raise InvalidInputError(f"{len(users)} users and {len(items)} items; expected pairs")
    return known.users.of(users), known.items.of(items)


def _column(frame: Any, name: str) -> list[Any]:
    column = frame[name]
    listed: list[Any] = (column.to_list if hasattr(column, "to_list") else column.to_pylist)()
    return listed


def _listed(ids: Any) -> Sequence[Any]:
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__len__"):
        return [ids]
    listed: Sequence[Any] = np.atleast_1d(ids).tolist() if hasattr(ids, "tolist") else ids
    return listed


# Errors and ranks on ratings that the fit has not seen.


def judged(
    known: Ratings, test: Any, n: int, relevant: float | None, bounds: Any
) -> dict[str, float]:
    """What ``evaluate`` of a model returns.  test : from ``open_ratings``, or its ``split``."""
    if not getattr(test, "rated", False):
        raise InvalidInputError(
            f"ratings of {type(test).__name__}; expected what streampca.open_ratings or its "
            "split() returned"
        )
    if relevant is not None and not np.isfinite(relevant):
        raise InvalidInputError(f"relevant={relevant!r}; expected a rating, or None for their mean")
    places = [
        known.users.of(Places(test.labels.samples).ids),
        known.items.of(Places(test.labels.features).ids),
    ]
    if relevant is None:
        relevant = known.result.provenance["mean"]
    squares = absolute = 0.0
    cells = cold = 0
    ranks = Ranks(known, n)
    for users, items, values in test.pieces():
        at, of = places[0][users], places[1][items]
        found = known.predict(at, of)
        errors = (found if bounds is None else np.clip(found, *bounds)) - values
        squares, absolute = squares + float(errors @ errors), absolute + float(np.abs(errors).sum())
        new = (at < 0) | (of < 0) | ~known.rated[of] | ~known.active[at]
        cells, cold = cells + len(errors), cold + int(np.count_nonzero(new))
        liked = values >= relevant
        ranks.add(users[liked], at[liked], of[liked])
    return {
        "ratings": cells,
        "cold": cold,
        "rmse": float(np.sqrt(squares / cells)),
        "mae": absolute / cells,
        "relevant": float(relevant),
        "n": n,
        **ranks.means(),
    }


class Ranks:
    """Sums over users of precision, recall and NDCG of the leading n items."""

    def __init__(self, known: Ratings, n: int) -> None:
        self.known, self.n, self.users = known, n, 0
        self.sums = np.zeros(3)
        self.gains = 1.0 / np.log2(np.arange(2, n + 2))

    def add(self, users: Array, places: Array, items: Array) -> None:
        """Add some users whole: who liked what, sorted by user.

        places : of the users in the fit. A user without a relevant rating does not count.
        """
        begins = np.flatnonzero(users != np.append(-1, users[:-1]))
        lists = self.known.best(places[begins], self.n)
        for liked, (chosen, _) in zip(np.split(items, begins)[1:], lists, strict=True):
            hits = np.isin(chosen, liked[liked >= 0])
            ideal = self.gains[: min(self.n, len(liked))].sum()
            gained = float(self.gains[: len(hits)] @ hits)
            self.sums += (hits.sum() / self.n, hits.sum() / len(liked), gained / ideal)
            self.users += 1

    def means(self) -> dict[str, float]:
        """By name; NaN where no user has a relevant rating."""
        found = self.sums / self.users if self.users else np.full(3, np.nan)
        names = ("precision", "recall", "ndcg")
        return dict(zip(names, found.tolist(), strict=True)) | {"users": self.users}
