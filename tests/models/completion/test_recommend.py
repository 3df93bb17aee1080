"""A completion of ratings by ids: what it recommends, predicts, and how it is judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca
from streampca.errors import AbsentNamesWarning, DamagedSourceError, InvalidInputError, SourceError
from streampca.models.completion import recommend
from tests.models.completion.ratings import movielens_like


def frame_of(rank: int = 2, seed: int = 0) -> pd.DataFrame:
    every = movielens_like(rank, seed, 250, 200, 12_000).tocoo()
    return pd.DataFrame(
        {
            "user": [f"u{i}" for i in every.row],
            "item": every.col + 1000,
            "rating": every.data,
            "time": np.arange(every.nnz),
        }
    )


@pytest.fixture(scope="module")
def fitted() -> Any:
    given, unseen = streampca.open_ratings(frame_of()).split(0.1)
    return streampca.HardImpute([2, 4], validation=0.05, tol=1e-3).fit(given), given, unseen


def ids(matrix: Any, axis: int) -> list[Any]:
    one = matrix.labels.axis(axis)
    found: list[Any] = np.asarray(one.coords[one.dims[0]]).tolist()
    return found


def by_hand(model: Any) -> np.ndarray:
    """(n, p) all predictions, before they are kept within bounds."""
    one = model.result_
    level = 0.0 if one.row_mean is None else one.row_mean[:, None]
    return np.asarray(one.scores @ one.components + level + one.mean)


def test_the_best_unseen_items_come_first(fitted: Any) -> None:
    model, given, _ = fitted
    users, items, whole = ids(given, 0), ids(given, 1), by_hand(model)
    seen = given.read(0, 0, 3).toarray() != 0
    for i in range(3):
        some = [
            j
            for j in np.argsort(-whole[i], kind="stable")
            if not seen[i, j] and j not in model.result_.dropped
        ][:5]
        found = model.recommend(users[i], 5)
        assert [item for item, _ in found] == [items[j] for j in some]
        assert [x for _, x in found] == pytest.approx(np.clip(whole[i, some], 1, 5).tolist())
    every = model.recommend(users[0], 10_000)
    assert len(every) == len(items) - seen[0].sum() - len(model.result_.dropped)
    again = model.recommend(users[0], 10_000, seen=True)
    assert len(again) == len(items) - len(model.result_.dropped)


def test_blocks_of_users_do_not_matter(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given, unseen = fitted
    users = ids(given, 0)[:40]
    whole, judged = model.recommend(users, 4), model.evaluate(unseen)
    monkeypatch.setattr(recommend, "CELLS", 700)
    smaller = model.recommend(users, 4)
    for user in users:
        items, values = zip(*whole[user])
        for other in (model.recommend(user, 4), smaller[user]):
            assert tuple(item for item, _ in other) == items
            # a product of one row is another routine of BLAS than that of several
            assert [x for _, x in other] == pytest.approx(list(values), rel=1e-14)
    assert model.evaluate(unseen) == judged


def test_pairs_in_all_forms(fitted: Any) -> None:
    model, given, _ = fitted
    users, items, whole = ids(given, 0), ids(given, 1), by_hand(model)
    pairs = [(users[3], items[5]), (users[7], items[0])]
    wanted = np.clip([whole[3, 5], whole[7, 0]], 1, 5)
    frame = pd.DataFrame(pairs, columns=["user", "item"])
    for one in (
        (pairs,),
        (frame,),
        tuple(zip(*pairs, strict=True)),
        (frame["user"].to_numpy(), frame["item"].to_numpy()),
    ):
        np.testing.assert_allclose(model.predict(*one), wanted, rtol=1e-12)
    np.testing.assert_allclose(model.predict(users[3], items[5]), wanted[:1])
    with pytest.raises(InvalidInputError, match="2 users and 1 items"):
        model.predict(users[:2], items[:1])


def test_cold_users_and_items_have_biases(fitted: Any) -> None:
    model, given, _ = fitted
    one, users, items = model.result_, ids(given, 0), ids(given, 1)
    rated = np.setdiff1d(np.arange(len(items)), one.dropped)
    common = one.mean[rated].mean()
    found = model.predict([("nobody", items[2]), (users[4], -1), ("nobody", -1)])
    wanted = [one.mean[2], common + one.row_mean[4], common]
    np.testing.assert_allclose(found, np.clip(wanted, 1, 5), rtol=1e-12)
    with pytest.warns(AbsentNamesWarning, match="nobody"):
        best = model.recommend("nobody", 3)
    assert [item for item, _ in best] == [items[j] for j in rated[np.argsort(-one.mean[rated])][:3]]


def test_somebody_new_is_placed_by_some_ratings(fitted: Any) -> None:
    """Those of a user of the fit find what that user is recommended."""
    model, given, _ = fitted
    items = ids(given, 1)
    row = given.read(0, 0, 1).tocoo()
    told = {items[j]: float(x) for j, x in zip(row.col, row.data, strict=True)}
    dense = np.full((1, len(items)), np.nan)
    dense[0, row.col] = row.data
    completed = model.impute(dense)[0]
    found = model.recommend(told, 6)
    assert not {item for item, _ in found} & told.keys()
    assert [x for _, x in found] == pytest.approx([completed[items.index(i)] for i, _ in found])
    with pytest.raises(InvalidInputError, match="has not seen: 77"):
        model.recommend({77: 3.0})


def test_similar_items_are_liked_by_the_same_people(fitted: Any) -> None:
    model, given, _ = fitted
    items, v = ids(given, 1), (model.components_ * model.singular_values_[:, None]).T
    cosine = v @ v[4] / np.linalg.norm(v, axis=1).clip(1e-300) / np.linalg.norm(v[4])
    cosine[[4, *model.result_.dropped]] = -2
    found = model.similar_items(items[4], 5)
    assert [item for item, _ in found] == [items[j] for j in np.argsort(-cosine)[:5]]
    assert [x for _, x in found] == pytest.approx(np.sort(cosine)[::-1][:5].tolist())


def test_errors_and_ranks_match_a_plain_loop(fitted: Any) -> None:
    model, given, unseen = fitted
    found = model.evaluate(unseen, 5, relevant=4)
    whole = by_hand(model)
    test, seen = unseen.read(0, 0, 250).toarray(), given.read(0, 0, 250).toarray() > 0
    there = test > 0
    errors = (np.clip(whole, 1, 5) - test)[there]
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert found["mae"] == pytest.approx(np.mean(np.abs(errors)))
    precision, recall, ndcg = [], [], []
    seen[:, model.result_.dropped] = True
    for i in np.flatnonzero((test >= 4).any(axis=1)):
        best = np.argsort(np.where(seen[i], np.inf, -whole[i]), kind="stable")[:5]
        hit, many = test[i, best] >= 4, int((test[i] >= 4).sum())
        gains = [1 / np.log2(place + 2) for place in range(5)]
        precision.append(hit.mean())
        recall.append(hit.sum() / many)
        ndcg.append(np.dot(gains, hit) / sum(gains[: min(many, 5)]))
    for name, one in (("precision", precision), ("recall", recall), ("ndcg", ndcg)):
        assert found[name] == pytest.approx(np.mean(one))
    assert (found["users"], found["ratings"]) == (len(ndcg), unseen.entries)


def test_later_ratings_of_new_users_are_counted_as_cold() -> None:
    frame = frame_of()  # sorted by user: the last ones are new
    given, unseen = streampca.open_ratings(frame, time="time").split(0.2, by="time")
    model = streampca.HardImpute(1, alpha=3.0, center="biases", tol=1e-2).fit(given)
    found = model.evaluate(unseen)
    assert found["relevant"] == pytest.approx(frame["rating"][: given.entries].mean())
    new = frame[~frame["user"].isin(frame["user"][: given.entries])]
    dropped = {ids(given, 1)[j] for j in model.result_.dropped}
    late = frame[given.entries :]
    cold = late["user"].isin(new["user"]) | late["item"].isin(dropped)
    assert found["cold"] == cold.sum() > 0


def test_ratings_have_a_recipe_of_their_own() -> None:
    given, unseen = streampca.open_ratings(frame_of()).split(0.1)
    model = streampca.HardImpute().fit(given)
    assert {one["rank"] for one in model.validation_} == {0, 2, 4, 8, 16}
    assert model.get_params()["rank"] == "auto"
    alone = streampca.HardImpute(0, center="biases").fit(given)
    assert model.evaluate(unseen)["rmse"] < 0.97 * alone.evaluate(unseen)["rmse"]
    again = model.refit(given)
    assert (again.best_rank_, again.best_penalty_) == (model.best_rank_, model.best_penalty_)
    assert again.validation_[0]["held_out"] != again.validation_[0]["held_out"]  # none is held out
    assert again.evaluate(unseen)["rmse"] < 1.01 * model.evaluate(unseen)["rmse"]
    assert streampca.HardImpute().fit(np.random.default_rng(0).normal(size=(9, 4))).best_rank_ == 1


def test_where_no_component_helps_items_are_not_alike() -> None:
    given, _ = streampca.open_ratings(frame_of(0)).split(0.1)
    model = streampca.HardImpute([2, 3]).fit(given)  # several of ratings are judged by 5 %
    assert model.best_rank_ == 0
    assert np.isfinite(model.validation_[-1]["held_out"])
    again = model.refit(given)
    assert again.best_rank_ == 0
    assert len(again.recommend("u0", 3)) == 3
    with pytest.raises(InvalidInputError, match="biases alone predict best"):
        again.similar_items(1001)


def test_a_saved_model_answers_the_same(fitted: Any, tmp_path: Any) -> None:
    model, given, unseen = fitted
    model.save(tmp_path / "model")
    again: Any = streampca.load(tmp_path / "model")
    user = ids(given, 0)[5]
    assert again.recommend(user) == model.recommend(user)
    assert again.evaluate(unseen) == model.evaluate(unseen)
    arrays, document = model.result_.to_saved()
    arrays["seen_items"] = arrays["seen_items"] + 10_000
    with pytest.raises((DamagedSourceError, SourceError), match="seen_items"):
        type(model.result_).from_saved(arrays, document, "model")


def test_a_fit_of_a_matrix_knows_no_ids() -> None:
    x = movielens_like(1, 0, 60, 50, 900)
    model = streampca.HardImpute(1, alpha=1.0).fit(x)
    assert model.predict([1, 2], [3, 4]).shape == (2,)
    with pytest.raises(InvalidInputError, match="open_ratings"):
        model.recommend(3)


@pytest.mark.parametrize("value", [1.0, 5.0])
def test_ratings_that_are_all_equal_are_refused_and_ranked_as_taken_or_not(value: float) -> None:
    """Implicit feedback: absent as zeros, items of one's own taste come before popular ones."""
    rng = np.random.default_rng(0)
    taste = rng.integers(0, 3, 150)
    taken = rng.random((150, 60)) < np.where(taste[:, None] == np.arange(60) % 3, 0.5, 0.02)
    users, items = np.nonzero(taken)
    frame = pd.DataFrame({"user": users, "item": items, "rating": value})
    ratings = streampca.open_ratings(frame)
    assert f"all ratings are {value:g}" in ratings.note
    for model in (streampca.HardImpute(), streampca.HardImpute(3), streampca.SoftImpute(3, 1.0)):
        with pytest.raises(InvalidInputError, match=r"HardImpute\(rank=20, absent='zero'\)"):
            model.fit(ratings)
    with pytest.raises(InvalidInputError, match="all ratings are"):
        streampca.HardImpute().fit(ratings.split(0.2)[0])
    model = streampca.HardImpute(rank=3, absent="zero", progress=False).fit(ratings)
    for user in range(0, 30, 7):
        best = [item for item, _ in model.recommend(user, 5)]
        assert np.mean([item % 3 == taste[user] for item in best]) > 0.7
