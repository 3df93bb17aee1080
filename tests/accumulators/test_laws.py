"""The laws of every accumulator of the list in ``law_cases``."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from law_cases import CASES, FILLING, REFUSING, WEIGHTED, Case, blocks, fold
from law_data import Data, Values, data

import streampca.matrix.tiles as tiles_module
from streampca.accumulators import Accumulator, Moments, Reconstruction
from streampca.errors import InvalidInputError, NonFiniteError
from streampca.matrix import Block, Standardize, work_dtype
from streampca.store import read_bundle, write_bundle
from tests.each import each

DTYPES = ("float32", "float64", "int8", "int16")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}

every = pytest.mark.parametrize("case", CASES, ids=str)
fast = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> Iterator[None]:
    """Tiles of three rows in pieces of 64 bytes, so that small blocks have many of both."""
    with pytest.MonkeyPatch.context() as patch:
        pieces = tiles_module.pieces
        patch.setattr(tiles_module, "TILE_LENGTH", 3)
        patch.setattr(tiles_module, "THIN_LENGTH", 3)
        patch.setattr(tiles_module, "TILE_NBYTES", 1)
        patch.setattr(tiles_module, "pieces", lambda *shape: pieces(*shape, 64))
        yield


@st.composite
def drawn(draw: Any, min_rows: int = 1) -> tuple[int, int, int, str]:
    """(seed, rows, columns, dtype)"""
    return (
        draw(st.integers(0, 2**16)),
        draw(st.integers(min_rows, 40)),
        draw(st.integers(1, 7)),
        draw(st.sampled_from(DTYPES)),
    )


def draw_edges(draw: Any, length: int) -> list[int]:
    """Block edges, sometimes with one-row and empty blocks and more than OPEN_BLOCKS of them."""
    inner = draw(st.lists(st.integers(0, length), max_size=24))
    return [0, *sorted(inner), length]


def tolerance(d: Data) -> float:
    return TOLERANCE[work_dtype(d.x.dtype).name]


def assert_close(found: Mapping[str, Any], expected: Values, tol: float) -> None:
    assert set(found) == set(expected)
    for name, (value, size) in expected.items():
        got, want = np.asarray(found[name]), np.asarray(value)
        assert got.shape == want.shape, name
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        with np.errstate(invalid="ignore"):
            off = np.where(same, 0.0, np.abs(got - want))
        assert np.all(off <= tol * np.asarray(size)), f"{name}: {got} is not {want}"


def frozen(value: Any) -> Any:
    """Everything in an object, private fields too, in a form that compares bit for bit."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {k: frozen(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: frozen(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Accumulator):
        return frozen(vars(value))
    return type(value).__name__, repr(value)


# -- the laws --------------------------------------------------------------------------------


@every
@fast
@given(draw=st.data(), how=drawn())
def test_any_chunking_gives_the_answer_of_numpy(case: Case, draw: Any, how: Any) -> None:
    d = data(*how)
    edges = draw_edges(draw.draw, d.x.shape[case.axis])
    assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@every
@fast
@given(draw=st.data(), how=drawn())
def test_merge_in_any_order_or_tree_changes_only_rounding(case: Case, draw: Any, how: Any) -> None:
    d = data(*how)
    edges = draw_edges(draw.draw, d.x.shape[case.axis])
    waiting = []
    for block in blocks(case, d, edges):
        waiting.append(case.make())
        waiting[-1].update(block)
    while len(waiting) > 1:
        i = draw.draw(st.integers(0, len(waiting) - 1))
        taken = waiting.pop(i)
        j = draw.draw(st.integers(0, len(waiting) - 1))
        waiting[j].merge(taken)
    assert_close(case.read(waiting[0]), case.oracle(d), tolerance(d))


@every
@each("dtype", ["float32", "float64", "int8"])
@each("seen_empty_block", [False, True])
def test_empty_is_neutral(case: Case, dtype: str, seen_empty_block: bool) -> None:
    d = data(3, 11, 5, dtype)
    full = fold(case, d, (0, 4, d.x.shape[case.axis]))
    expected = case.read(full)
    nothing = d.x[:, :0] if case.axis else d.x[:0]

    def empty() -> Accumulator:
        accumulator = case.make()
        if seen_empty_block:
            arrays = d.beside(case.axis, slice(0, 0))
            accumulator.update(Block(nothing, case.axis, 0, 0, arrays=arrays))
        return accumulator

    left = empty()
    left.merge(full)
    right = full.copied()
    right.merge(empty())
    for merged in (left, right):
        assert frozen(dict(case.read(merged))) == frozen(dict(expected))


@every
@each("dtype", ["float32", "float64"])
def test_empty_with_empty_is_empty(case: Case, dtype: str) -> None:
    a, b = case.make(), case.make()
    a.merge(b)
    assert frozen(a.state()) == frozen(case.make().state())
    d = data(4, 6, 3, dtype)
    for block in blocks(case, d, (0, d.x.shape[case.axis])):
        a.update(block)
    assert frozen(a.state()) == frozen(fold(case, d).state())


@every
@each("dtype", ["float32", "float64"])
@each("settled", [False, True])
def test_merge_leaves_its_argument_alone(case: Case, dtype: str, settled: bool) -> None:
    d = data(5, 12, 6, dtype)
    length = d.x.shape[case.axis]
    first, second, third = blocks(case, d, (0, 3, 5, length))
    for start in ([], [first]):
        mine, other = case.make(), case.make()
        for block in start:
            mine.update(block)
        other.update(second)
        if settled:
            other.settle()
        before = frozen(other)
        mine.merge(other)
        assert frozen(other) == before
        mine.update(third)  # nothing of other's may live on in mine
        mine.settle()
        mine.merge(case.make())
        assert frozen(other) == before


@every
@fast
@given(how=drawn())
def test_state_round_trips_bit_for_bit(case: Case, how: Any) -> None:
    d = data(*how)
    length = d.x.shape[case.axis]
    edges = (0, length // 2, length)
    accumulator = fold(case, d, edges)
    before = frozen(accumulator)
    state = accumulator.state()
    assert frozen(accumulator) == before, "state() changed what it read"
    restored = case.make().from_state(state)
    assert frozen(restored.state()) == frozen(state)
    assert frozen(dict(case.read(restored))) == frozen(
        dict(case.read(case.make().from_state(state)))
    )
    # what is restored goes on as the original would have gone on
    accumulator.settle()
    for goes_on in (accumulator, restored):
        for block in blocks(case, d, edges):
            goes_on.update(block)
    assert frozen(accumulator.state()) == frozen(restored.state())


@every
@each("filled", [False, True])
def test_state_survives_a_bundle_bit_for_bit(case: Case, filled: bool, tmp_path: Any) -> None:
    d = data(6, 9, 4, "float32")
    accumulator = fold(case, d, (0, 2, d.x.shape[case.axis])) if filled else case.make()
    path = tmp_path / f"filled {filled}"
    write_bundle(path, accumulator.state(), {})
    arrays, _ = read_bundle(path)
    assert frozen(arrays) == frozen(accumulator.state())
    assert frozen(case.make().from_state(arrays).state()) == frozen(accumulator.state())


@every
def test_state_is_not_shared(case: Case) -> None:
    d = data(7, 9, 4)
    accumulator = fold(case, d)
    before = frozen(accumulator)
    state = accumulator.state()
    restored = case.make().from_state(state)
    for array in state.values():
        if array.ndim:
            array[...] = 99
    assert frozen(accumulator) == before
    assert frozen(restored.state()) == frozen(accumulator.state())


@every
def test_unknown_state_is_refused(case: Case) -> None:
    state = {**fold(case, data(7, 9, 4)).state(), "entropy": np.zeros(3)}
    with pytest.raises(InvalidInputError, match="entropy"):
        case.make().from_state(state)


@every
@each("dtype", ["float32", "float64"])
def test_reading_twice_gives_equal_unshared_arrays(case: Case, dtype: str) -> None:
    accumulator = fold(case, data(8, 9, 4, dtype))
    before = frozen(accumulator)
    first = dict(case.read(accumulator))
    kept = copy.deepcopy(first)
    for value in first.values():
        if isinstance(value, np.ndarray) and value.ndim:
            value[...] = 77
    assert frozen(accumulator) == before, "reading changed the accumulator"
    assert frozen(dict(case.read(accumulator))) == frozen(kept)


@every
@each("dtype", DTYPES)
def test_one_row_one_column_and_empty_blocks_count(case: Case, dtype: str) -> None:
    for n, p in ((1, 1), (1, 5), (7, 1), (2, 2)):
        d = data(9, n, p, dtype)
        length = d.x.shape[case.axis]
        edges = [0, 0, *range(length + 1), length]
        assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@every
@each("dtype", DTYPES)
def test_what_is_kept_is_float64(case: Case, dtype: str) -> None:
    accumulator = fold(case, data(10, 9, 4, dtype), None)
    for values in (accumulator.state(), case.read(accumulator)):
        for name, value in values.items():
            if np.asarray(value).dtype.kind == "f":
                kept = work_dtype(np.dtype(dtype)) if name in case.single else np.float64
                assert np.asarray(value).dtype == kept, name


# -- missing values --------------------------------------------------------------------------


def with_nan(d: Data, cells: Any) -> Data:
    x, missing = d.x.copy(), d.missing.copy()
    x[cells] = np.nan
    missing[cells] = True
    return Data(x, missing, d.weights)


@pytest.mark.parametrize("case", REFUSING, ids=str)
@each("dtype", ["float32", "float64"])
def test_a_partly_missing_column_is_refused_by_name(case: Case, dtype: str) -> None:
    d = with_nan(data(11, 12, 6, dtype), ([7, 8], [3, 3]))
    length = d.x.shape[case.axis]
    wrong = 1 if case.axis == 0 else 0
    with pytest.raises(NonFiniteError) as caught:
        fold(case, d, (0, 5, length))
    text = str(caught.value)
    kind = "features" if case.axis else "samples"
    assert f"block {wrong} ({kind}" in text
    assert "feature 3" in text
    assert "2 missing" in text
    assert "missing='mean'" in text


@pytest.mark.parametrize("case", [c for c in REFUSING if c.axis == 0], ids=str)
@each("missing_first", [True, False])
@each("how", ["update", "merge"])
def test_a_column_missing_in_some_blocks_only_is_refused(
    case: Case, missing_first: bool, how: str
) -> None:
    rows = slice(0, 6) if missing_first else slice(6, 12)
    d = with_nan(data(12, 12, 4), (rows, 2))
    first, second = blocks(case, d, (0, 6, 12))
    a, b = case.make(), case.make()
    a.update(first)
    b.update(second)
    before = a.state()
    with pytest.raises(NonFiniteError, match=r"feature 2|column 2"):
        a.update(second) if how == "update" else a.merge(b)
    if how == "merge":  # refused before anything changed
        after = a.state()
        assert after.keys() == before.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)


@every
@each("dtype", ["float32", "float64"])
def test_a_column_without_observations_is_allowed(case: Case, dtype: str) -> None:
    d = with_nan(data(13, 12, 6, dtype), (slice(None), [0, 4]))
    edges = (0, 0, 1, 5, d.x.shape[case.axis])
    assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))


@every
@each("dtype", ["float32", "float64"])
@each("value, beside_nan", [(np.inf, False), (-np.inf, True)])
def test_infinity_is_refused_by_name(
    case: Case, dtype: str, value: float, beside_nan: bool
) -> None:
    d = data(14, 12, 6, dtype)
    d.x[8, 3] = value  # feature 3 is scaled by 0 where features are scaled by an operand
    if beside_nan:
        d.x[:, 3] = np.where(np.arange(12) == 8, value, np.nan)
    with pytest.raises(NonFiniteError, match="infinity") as caught:
        fold(case, d, (0, 2, d.x.shape[case.axis]))
    assert "block 1" in str(caught.value)
    assert "feature 3" in str(caught.value)


@pytest.mark.parametrize("case", FILLING, ids=str)
@each("dtype", ["float32", "float64"])
@each("share", [0.05, 0.6])
def test_holes_are_left_out_or_filled(case: Case, dtype: str, share: float) -> None:
    d = data(15, 21, 6, dtype)
    d = with_nan(d, np.random.default_rng(0).random(d.x.shape) < share)
    edges = (0, 1, 6, d.x.shape[case.axis])
    assert_close(case.read(fold(case, d, edges)), case.oracle(d), tolerance(d))
    merged = case.make()
    for block in blocks(case, d, edges):
        one = case.make()
        one.update(block)
        merged.merge(one)
    assert_close(case.read(merged), case.oracle(d), tolerance(d))


@pytest.mark.parametrize("case", FILLING, ids=str)
@each("how", ["code", "hidden", "both", "nan and hidden"])
def test_codes_and_hidden_cells_are_missing(case: Case, how: str) -> None:
    dtype = "float32" if how == "nan and hidden" else "int8"
    d = data(16, 21, 6, dtype)
    rng = np.random.default_rng(2)
    coded, hidden = rng.random(d.x.shape) < 0.2, rng.random(d.x.shape) < 0.2
    more: dict[str, Any] = {}
    missing = np.zeros_like(d.missing)
    if how in ("code", "both"):
        d.x[coded] = -9
        missing |= d.x == -9
        more["missing_value"] = -9
    if how == "nan and hidden":
        d.x[coded] = np.nan
        missing |= coded
    if how != "code":
        missing |= hidden
        more["hidden"] = hidden
    d = Data(d.x, missing, d.weights)
    found = case.read(fold(case, d, (0, 4, 5, d.x.shape[case.axis]), **more))
    assert_close(found, case.oracle(d), tolerance(d))


@pytest.mark.parametrize("case", REFUSING, ids=str)
@each("how", ["code", "hidden"])
def test_codes_and_hidden_cells_are_refused(case: Case, how: str) -> None:
    d = data(17, 12, 6, "int8")
    d.x[d.x == -9] = 0
    d.x[4, 3] = -9
    more = {"missing_value": -9} if how == "code" else {"hidden": d.x == -9}
    with pytest.raises(NonFiniteError, match="feature 3"):
        fold(case, d, (0, d.x.shape[case.axis]), **more)


@every
def test_a_column_of_codes_alone_is_allowed(case: Case) -> None:
    d = data(18, 12, 6, "int8")
    d.x[d.x == -9] = 0
    d.x[:, 2] = -9
    d = Data(d.x, d.x == -9, d.weights)
    found = case.read(fold(case, d, (0, 5, d.x.shape[case.axis]), missing_value=-9))
    assert_close(found, case.oracle(d), tolerance(d))


# -- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WEIGHTED, ids=str)
@fast
@given(draw=st.data(), how=drawn(min_rows=2))
def test_integer_weights_are_repeated_rows(case: Case, draw: Any, how: Any) -> None:
    d = data(*how)
    weights = np.random.default_rng(how[0]).integers(0, 4, len(d.x))
    weights[0] = 2
    repeated = data(*how)
    repeated = Data(
        np.repeat(d.x, weights, axis=0),
        np.repeat(d.missing, weights, axis=0),
        np.ones(weights.sum()),
    )
    d = Data(d.x, d.missing, weights.astype(np.float64))
    edges = draw_edges(draw.draw, d.x.shape[case.axis])
    found = dict(case.read(fold(case, d, edges, weighted=True)))
    expected = {name: case.oracle(repeated)[name] for name in case.by_row if name in found}
    if "spectrum" in expected:  # the repeated rows have more eigenvalues, all zero
        value, size = expected["spectrum"]
        k = min(len(value), len(d.x))
        expected["spectrum"] = value[:k], size
        found["spectrum"] = found["spectrum"][:k]
    assert_close({name: found[name] for name in expected}, expected, tolerance(d))


@every
@each("dtype", ["float32", "float64"])
def test_weights_need_not_be_integers(case: Case, dtype: str) -> None:
    d = data(19, 17, 5, dtype)
    d = Data(d.x, d.missing, np.random.default_rng(3).random(len(d.x)) * 5)
    if case.holes == "fill":
        d = with_nan(d, np.random.default_rng(4).random(d.x.shape) < 0.3)
    found = dict(case.read(fold(case, d, (0, 1, 4, d.x.shape[case.axis]), weighted=True)))
    assert_close(found, case.oracle(d), tolerance(d))


@pytest.mark.parametrize("case", FILLING, ids=str)
def test_a_row_of_weight_zero_may_hold_nan(case: Case) -> None:
    d = data(20, 9, 4)
    d = with_nan(d, ([2, 5], [1, 3]))
    weights = np.ones(9)
    weights[[2, 5]] = 0.0
    d = Data(d.x, d.missing, weights)
    found = case.read(fold(case, d, (0, 3, d.x.shape[case.axis]), weighted=True))
    assert_close(found, case.oracle(d), tolerance(d))


# -- sparse and shapes -----------------------------------------------------------------------


@every
@each("dtype, weighted", [("float32", False), ("float64", True), ("int8", False), ("int8", True)])
def test_sparse_blocks_equal_dense_ones(case: Case, dtype: str, weighted: bool) -> None:
    d = data(21, 23, 6, dtype)
    if weighted:
        d = Data(d.x, d.missing, np.random.default_rng(6).random(len(d.x)) * 5)
    d.x[np.random.default_rng(5).random(d.x.shape) < 0.7] = 0
    # int8 as the older kind, which a block takes apart into the same arrays
    if dtype != "int8":
        compress = scipy.sparse.csc_array if case.axis else scipy.sparse.csr_array
    else:
        compress = scipy.sparse.csc_matrix if case.axis else scipy.sparse.csr_matrix
    edges = (0, 0, 3, d.x.shape[case.axis])
    accumulator = case.make()
    for block in blocks(case, d, edges, weighted=weighted):
        block.values = compress(block.values)
        accumulator.update(block)
    dense = case.read(fold(case, d, edges, weighted=weighted))
    sizes = case.oracle(d)
    expected = {name: (value, sizes[name][1]) for name, value in dense.items()}
    found = dict(case.read(accumulator))
    if weighted and case.name == "SubspaceStep":  # nobody keeps images of streamed samples
        del found["image"], expected["image"]
    assert_close(found, expected, tolerance(d) / 10)


@every
def test_another_width_is_refused(case: Case) -> None:
    d, wide = data(22, 8, 4), data(22, 8, 5)
    if case.axis:
        wide = data(22, 9, 4)
    a, b = fold(case, d), fold(case, wide)
    before = frozen(a)
    if isinstance(a, Moments) and case.axis:  # blocks of features: more columns are more parts
        wide = data(22, 8, 5)
        b = fold(case, wide)
    block = next(blocks(case, wide, (0, wide.x.shape[case.axis])))
    if isinstance(a, Reconstruction):
        block.arrays = d.operands
    with pytest.raises(InvalidInputError, match=r"\b4\b.*\b5\b|\b5\b.*\b4\b|\b8\b.*\b9\b"):
        a.update(block)
    if not isinstance(a, Reconstruction):  # its sums do not depend on the width
        with pytest.raises(InvalidInputError):
            a.merge(b)
    settled = a.copied()
    settled.settle()
    assert frozen(a) == before or frozen(a) == frozen(settled)


@pytest.mark.parametrize("case", [c for c in CASES if c.make().axis is not None], ids=str)
def test_blocks_along_the_other_axis_are_refused(case: Case) -> None:
    d = data(23, 6, 4)
    block = Block(d.x, 1 - case.axis, 0, d.x.shape[1 - case.axis], arrays={**d.operands, "y": d.y})
    with pytest.raises(InvalidInputError, match="needs blocks of"):
        case.make().update(block)


@every
def test_reading_before_any_block_is_an_error_of_ours(case: Case) -> None:
    with pytest.raises(InvalidInputError):
        case.read(case.make())


@every
def test_blank_has_the_same_settings_and_nothing_seen(case: Case) -> None:
    d = data(24, 9, 4)
    full = fold(case, d)
    blank = full.blank()
    assert frozen(blank) == frozen(case.make())
    for block in blocks(case, d, (0, d.x.shape[case.axis])):
        blank.update(block)
    assert frozen(blank.state()) == frozen(full.state())


@every
@each("dtype", ["float32", "float64"])
@each("n, p", [(40, 30), (70, 7), (7, 70), (1, 1)])
def test_memory_stays_under_its_projection(case: Case, dtype: str, n: int, p: int) -> None:
    d = data(25, n, p, dtype)
    length = d.x.shape[case.axis]
    accumulator = fold(case, d, (0, length // 2, length))
    partial = held(accumulator)
    assert partial <= accumulator.partial_nbytes((n, p), d.x.dtype.itemsize) + 256
    accumulator.merge(accumulator.copied()) if case.axis == 0 else accumulator.settle()
    assert held(accumulator) <= accumulator.projected_nbytes((n, p), d.x.dtype.itemsize) + 256


def held(value: Any) -> int:
    """Bytes of all arrays in an accumulator."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(held(v) for v in value.values())
    if isinstance(value, Accumulator):
        return held(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, Standardize):
        return sum(held(getattr(value, f.name)) for f in dataclasses.fields(value))
    return 0


@every
def test_an_emptied_one_begins_anew_and_leaves_what_was_merged(case: Case) -> None:
    """It may use the arrays of the one before, which a total has taken in."""
    d = data(26, 12, 5)
    length = d.x.shape[case.axis]
    first, second = blocks(case, d, (0, length // 2, length))
    used, fresh, total, kept = (case.make() for _ in range(4))
    used.update(first)
    fresh.update(second)
    total.merge(used)
    kept.merge(used.copied())
    again = used.emptied()
    again.update(second)
    assert frozen(again.state()) == frozen(fresh.state())
    assert frozen(total.state()) == frozen(kept.state())
