"""streampca.append: rows first, their number last; an append that dies did not happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pytest
import xarray
import zarr

import streampca
from streampca.errors import ChangingSourceError, InvalidInputError
from streampca.sources.zarr import appending
from streampca.sources.zarr.marks import CALLS, COMMITTED, FILLED, MARK, RowMark

P, ROWS = 5, 16
KINDS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2},
    "v3": {},
    "sharded": {"shards": (2 * ROWS, P)},
}


def data(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, P))


def made(place: Any, **more: Any) -> zarr.Array:
    array = zarr.create_array(place, shape=(50, P), chunks=(ROWS, P), dtype="f8", **more)
    array[...] = data(50)
    return array


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_appended_and_vouched_for(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "x.zarr"
    array = made(str(place), **KINDS[kind])
    assert streampca.append(place, data(30, 1)) == 80
    assert streampca.append(array, np.zeros((40, P))) == 120
    assert streampca.append(str(place), data(0)) == 120
    found = zarr.open_array(str(place), mode="r")
    np.testing.assert_array_equal(found, np.concatenate([data(50), data(30, 1), np.zeros((40, P))]))
    assert found.attrs["streampca_rows"] == [[50, 120]]
    assert found.metadata.codecs == array.metadata.codecs if kind != "v2" else True
    assert streampca.open(str(place)).read(0, 100, 120).shape == (20, P)  # blank chunks are there


@pytest.mark.parametrize("kind", KINDS)
def test_an_append_that_dies_at_any_step_is_whole_or_absent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = made(str(tmp_path / "x"), **KINDS[kind])
    put, left = zarr.storage.LocalStore.set, [0]

    async def dying(self: Any, key: str, value: Any) -> None:
        if left[0] == 0:
            raise OSError("dead")
        left[0] -= 1
        await put(self, key, value)

    seen = set()
    for steps in range(8):
        left[0] = steps
        with monkeypatch.context() as patch:
            patch.setattr(zarr.storage.LocalStore, "set", dying)
            try:
                done = streampca.append(array, data(30, 1)) == 80
            except OSError:
                done = False
        found = zarr.open_array(str(tmp_path / "x"), mode="r")
        seen.add(done)
        assert found.shape == (80 if done else 50, P)
        if done:
            np.testing.assert_array_equal(found[50:], data(30, 1))
            break
    assert seen == {False, True}
    assert streampca.append(array, data(4, 2)) == 84


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    array = made(str(tmp_path / "x"))
    for rows, words in (
        (data(3).astype("f4"), "rows.astype\\('<f8'\\)"),
        (data(3)[:, :2], r"shape \(3, 2\); expected \(rows, 5\)"),
        (data(3)[0], r"expected \(rows, 5\)"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            streampca.append(array, rows)
    with pytest.raises(InvalidInputError, match="dim=2; expected 0 to 1"):
        streampca.append(array, data(3), dim=2)
    with pytest.raises(InvalidInputError, match="rows=51; expected 0 to 50"):
        streampca.commit_rows(array, 51)
    with pytest.raises(InvalidInputError, match="storage_options are for URLs"):
        streampca.append(tmp_path / "x", data(3), storage_options={"a": 1})
    assert dict(zarr.open_array(str(tmp_path / "x")).attrs) == {}


def test_a_writer_with_a_mark_of_its_own_keeps_it(tmp_path: Path) -> None:
    array = made(str(tmp_path / "x"))
    array.attrs["streampca_rows_committed"] = 40
    with pytest.raises(InvalidInputError, match=r"says 40 of 50 rows.*commit_rows\(store, 50\)"):
        streampca.append(array, data(3))
    streampca.commit_rows(array, 50)
    streampca.append(array, data(3))
    attributes = dict(zarr.open_array(str(tmp_path / "x")).attrs)
    assert [one[:2] for one in attributes.pop(CALLS)] == [[0, 50], [50, 53]]
    assert attributes == {"streampca_rows_committed": 53}


def test_rows_that_were_vouched_for_stay_so_behind_a_gap(tmp_path: Path) -> None:
    """The rows of another writer lie between; then they are vouched for too."""
    place = str(tmp_path / "x")
    made(place)
    streampca.commit_rows(place, 50)
    zarr.open_array(place).append(data(6))
    streampca.append(place, data(4))
    streampca.append(place, data(10))
    attributes = zarr.open_array(place).attrs
    assert attributes[MARK] == [[0, 50], [56, 70]]
    mark = RowMark.of(attributes)
    assert (mark.end, mark.proves(0), mark.proves(53), mark.proves(56)) == (70, 50, 53, 70)
    assert mark.may_be_blank == ((0, 50),)  # no zero was appended: a row of zeros is none of these
    assert mark.unproven(0, 90) == [(50, 90)]
    assert mark.unproven(40, 54) == [(50, 54)]
    assert mark.unproven(6, 50) == mark.unproven(3, 3) == []
    streampca.commit_rows(place, 70)
    assert zarr.open_array(place).attrs[MARK] == [[0, 70]]
    # what is said of rows that are not there is forgotten
    longer, shorter = mark.extended(60, 65, (61, 64)), mark.extended(40, 45)
    assert (longer[MARK], longer[FILLED]) == ([[0, 50], [56, 65]], [[0, 50], [61, 64]])
    assert (shorter[MARK], shorter[FILLED]) == ([[0, 45]], [[0, 40]])
    assert [one[:2] for one in shorter[CALLS]] == [[0, 40], [40, 40], [40, 40], [40, 45]]


@pytest.mark.parametrize(
    ("value", "spans"),
    [
        ([[3, 9]], ((3, 9),)),
        ([[5, 9], [0, 5], [20, 20]], ((0, 9),)),
        ([[0, 9], [2, 4]], ((0, 9),)),
        ([], ()),
        ([[9, 3]], ()),
        ([9, 3], ()),
        ([3], ()),
        ([[0, 3], "x"], ()),
        ([[0, True]], ()),
        ("0", ()),
        (7, ()),
        ([[0, 3], [4.0, 5]], ()),
        ({"0": 3}, ()),
    ],
)
def test_marks_of_any_kind_are_read(value: Any, spans: Any) -> None:
    assert RowMark.of({MARK: value}) == RowMark(spans)
    assert RowMark.of({MARK: value, COMMITTED: 7}) == RowMark(((0, 7),), True)


def test_another_writer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = made(str(tmp_path / "x"))
    ahead = appending._ahead

    def beside_another(one: Any, metadata: Any) -> Any:
        zarr.open_array(str(tmp_path / "x")).append(data(9))
        return ahead(one, metadata)

    monkeypatch.setattr(appending, "_ahead", beside_another)
    with pytest.raises(ChangingSourceError, match="by another writer"):
        streampca.append(array, data(3))


@pytest.mark.parametrize("kind", [2, 3])
def test_groups_of_xarray(kind: int, tmp_path: Path) -> None:
    """Consolidated metadata follow; coordinates that would be too short are not left behind."""
    place = str(tmp_path / "g")
    X = xarray.Dataset({"X": (("time", "x"), data(50))})
    X.to_zarr(place, zarr_format=kind, consolidated=kind == 2)
    assert streampca.append(place, data(7, 1), variable="X") == 57
    again = xarray.open_zarr(place, consolidated=kind == 2)["X"]
    np.testing.assert_array_equal(again[50:], data(7, 1))
    X.assign_coords(time=np.arange(50)).to_zarr(
        str(tmp_path / "h"), zarr_format=kind, consolidated=False
    )
    with pytest.raises(InvalidInputError, match="append_dim='time'"):
        streampca.append(tmp_path / "h", data(7, 1), variable="X")
    streampca.commit_rows(tmp_path / "h", 50, variable="X")


def test_other_places(tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    made(zarr.storage.FsspecStore.from_url("memory://append-x"))
    assert streampca.append("memory://append-x", data(3)) == 53
    array = made(zarr.storage.ObjectStore(obstore.store.MemoryStore()))
    assert streampca.append(array, data(3)) == 53
    across = zarr.create_array(zarr.storage.MemoryStore(), shape=(P, 4), chunks=(2, 3), dtype="f8")
    assert streampca.append(across, data(6).T, dim=1) == 10
    np.testing.assert_array_equal(zarr.open_array(across.store)[:, 4:], data(6).T)
