"""What Dask chunks may be: the right numbers, or a refusal with a line that repairs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr

import streampca
from streampca.errors import InvalidTypeError, NonFiniteError
from streampca.matrix.kinds import as_scipy
from streampca.sources.dask.arrays import from_dask

N, P, CHUNK = 60, 6, 20
FIELDS = np.dtype([("a", "f8"), ("b", "f8")])


def counts() -> np.ndarray[Any, Any]:
    """(N, P) small whole numbers, about half of them 0; another mean in each column."""
    rng = np.random.default_rng(5)
    values = rng.integers(-9, 10, (N, P)) + np.arange(P)
    return np.where(rng.random((N, P)) < 0.5, 0, values)


VALUES = counts()
PLAIN = da.from_array(VALUES.astype("f8"), chunks=(CHUNK, P))
MASK = np.random.default_rng(6).random((N, P)) < 0.1
HOLED = np.where(MASK, np.nan, VALUES.astype("f8"))


def declared(
    function: Callable[[Any], Any], dtype: Any = "f8", meta: Any = None, chunks: Any = (CHUNK, P)
) -> da.Array:
    """An array whose chunks a function makes, declared as said and not as they are."""
    x = da.from_array(VALUES.astype("f8"), chunks=chunks)
    return x.map_blocks(
        function, dtype=dtype, meta=np.empty((0, 0), dtype) if meta is None else meta
    )


def masked(values: Any) -> Any:
    """Values masked where they are odd or negative, and there something else."""
    hidden = values % 5 == 3
    return np.ma.masked_array(np.where(hidden, 77, values).astype(values.dtype), hidden)


def model_of(x: Any, **more: Any) -> streampca.PCA:
    return streampca.PCA(2, progress=False, **more).fit(x)


def check(x: Any, values: np.ndarray[Any, Any], tol: float = 1e-12, **more: Any) -> None:
    """The fit and the lazy scores of x are those of these values."""
    expected = model_of(values.astype("f8"), **more)
    found = model_of(x, **more)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=tol, atol=tol)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=tol)
    scores = found.transform(x)
    assert isinstance(scores, da.Array)
    wanted = expected.transform(values.astype("f8"))
    np.testing.assert_allclose(scores.compute(), wanted, rtol=100 * tol, atol=100 * tol)


# -- sparse -----------------------------------------------------------------------------------

SCIPY = ["csr_array", "csc_array", "coo_array", "csr_matrix", "bsr_array"]


@pytest.mark.parametrize("chunks", [(CHUNK, P), (CHUNK, 4)])
@pytest.mark.parametrize("kind", SCIPY)
def test_sparse_chunks_of_scipy(kind: str, chunks: tuple[int, int]) -> None:
    make = getattr(scipy.sparse, kind)
    check(
        declared(
            make,
            meta=make((0, 0), dtype="f8")
            if kind != "bsr_array"
            else scipy.sparse.csr_array((0, 0)),
            chunks=chunks,
        ),
        VALUES,
    )


# it compiles what joins chunks of this kind, for seconds in each process
GCXS = pytest.param("GCXS", marks=pytest.mark.slow)


@pytest.mark.parametrize("chunks", [(CHUNK, P), (CHUNK, 4)])
@pytest.mark.parametrize("kind", ["COO", GCXS, "DOK"])
def test_sparse_chunks_of_pydata(kind: str, chunks: tuple[int, int]) -> None:
    sparse = pytest.importorskip("sparse")
    make = getattr(sparse, kind).from_numpy
    x = da.from_array(VALUES.astype("f8"), chunks=chunks).map_blocks(make)
    check(x, VALUES)
    named = xr.DataArray(x, dims=("cell", "gene"), coords={"gene": list("abcdef")})
    matrix = streampca.open(named)
    assert matrix.sparse
    assert matrix.labels.features.names() == list("abcdef")
    np.testing.assert_array_equal(matrix.read(0, 0, N).toarray(), VALUES)


@pytest.mark.parametrize("kind", ["COO", "GCXS", "DOK"])
def test_pydata_sparse_in_memory(kind: str) -> None:
    sparse = pytest.importorskip("sparse")
    x = getattr(sparse, kind).from_numpy(VALUES.astype("f8"))
    expected = model_of(VALUES.astype("f8"))
    for source in (x, xr.DataArray(x, dims=("cell", "gene")) if kind != "DOK" else x):
        found = model_of(source)
        np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_)
        np.testing.assert_allclose(found.transform(source), expected.transform(VALUES * 1.0))


@pytest.mark.parametrize("kind", ["COO", GCXS])
def test_pydata_sparse_whose_columns_are_the_samples(kind: str) -> None:
    sparse = pytest.importorskip("sparse")
    x = getattr(sparse, kind).from_numpy(VALUES.T * 1.0)
    for source, dim in ((x, 1), (xr.DataArray(x, dims=("gene", "cell")), "cell")):
        matrix = streampca.open(source, dim=dim)
        np.testing.assert_array_equal(matrix.read(0, 0, N).toarray(), VALUES)
    grid = xr.DataArray(x.reshape((P, N // 2, 2)), dims=("time", "lat", "lon"))
    with pytest.raises(InvalidTypeError, match="todense"):
        streampca.open(grid)


def test_sparse_of_another_fill_value_is_refused() -> None:
    sparse = pytest.importorskip("sparse")
    x = PLAIN.map_blocks(lambda block: sparse.COO.from_numpy(block, fill_value=1.0))
    with pytest.raises(InvalidTypeError, match=r"fill_value=1.*todense"):
        model_of(x)
    check(x.map_blocks(lambda block: block.todense()), VALUES)
    alone = sparse.COO.from_numpy(VALUES * 1.0, fill_value=np.nan)
    with pytest.raises(InvalidTypeError, match=r"fill_value=nan.*X\.todense\(\)"):
        model_of(alone)
    with pytest.raises(InvalidTypeError, match="3 dimensions"):
        as_scipy(sparse.COO.from_numpy(np.ones((2, 3, 4))))


def test_sparse_chunks_that_were_declared_dense() -> None:
    x = declared(scipy.sparse.csr_array)
    with pytest.raises(InvalidTypeError, match="csr_array; expected NumPy"):
        model_of(x)
    repaired = x.map_blocks(lambda block: block, meta=scipy.sparse.csr_array((0, 0)))
    check(repaired, VALUES)
    dense = x.map_blocks(lambda b: b.todense(), dtype=x.dtype, meta=np.empty((0, 0)))
    check(dense, VALUES)


def test_what_sparse_arrays_compute_instead() -> None:
    meta = scipy.sparse.csr_array((0, 0))
    check(declared(lambda block: block, meta=meta), VALUES)
    x = declared(masked, meta=meta)
    check(x, masked(VALUES * 1.0).filled(np.nan), missing="mean")
    with pytest.raises(InvalidTypeError, match=r"complex128.*numpy\.real"):
        model_of(declared(lambda block: scipy.sparse.csr_array(block + 1j), meta=meta))
    small = scipy.sparse.csr_array((0, 0), dtype="i1")
    wide = declared(lambda b: scipy.sparse.csr_array(1000 * b.astype("i8")), "i1", small)
    with pytest.raises(InvalidTypeError, match="int64, declared as int8"):
        model_of(wide)


# -- masked -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "i4", "u2", "i8", "bool"])
def test_masked_chunks_are_missing(dtype: str) -> None:
    values = VALUES if dtype != "bool" else VALUES > 0
    values = (values + 20 if dtype == "u2" else values).astype(dtype)
    x = da.from_array(np.ma.masked_array(values, MASK), chunks=(CHUNK, P))
    expected = np.where(MASK, np.nan, values.astype("f8"))
    tol = 1e-12 if np.dtype(dtype).itemsize > 2 and dtype != "f4" else 1e-6
    check(x, expected, tol, missing="mean")
    with pytest.raises(NonFiniteError, match="missing='mean'"):
        model_of(x)


@pytest.mark.parametrize("made", ["f8", "i4"])
def test_masked_chunks_that_were_declared_plain(made: str) -> None:
    x = declared(lambda block: masked(block.astype(made)))
    check(x, masked(VALUES * 1.0).filled(np.nan), missing="mean")


def test_masked_integers_that_were_declared_plain_are_refused() -> None:
    x = declared(lambda block: masked(block.astype("i4")), "i4")
    with pytest.raises(InvalidTypeError, match=r"masked cells.*int32.*missing_value=-9") as error:
        model_of(x, missing="mean")
    meta = np.ma.masked_array(np.empty((0, 0), "i4"))
    assert "meta=numpy.ma.masked_array(numpy.empty((0, 0), 'int32'))" in str(error.value)
    check(x.map_blocks(lambda b: b, meta=meta), masked(VALUES * 1.0).filled(np.nan), missing="mean")
    unhidden = declared(lambda block: np.ma.masked_array(block.astype("i4")), "i4")
    check(unhidden, VALUES)


def test_integers_under_a_mask_may_be_of_any_size() -> None:
    large = np.where(MASK, 2**60 + 1, VALUES)
    x = da.from_array(np.ma.masked_array(large, MASK), chunks=(CHUNK, P))
    check(x, HOLED, missing="mean")
    shown = da.from_array(np.ma.masked_array(np.where(MASK, VALUES, 2**60 + 1), MASK), CHUNK)
    with pytest.raises(InvalidTypeError, match=r"2\*\*53"):
        model_of(shown, missing="mean")


# -- dtypes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "tol"),
    [("f2", 1e-5), ("f4", 1e-5), (">f4", 1e-5), (">i8", 1e-12), ("i1", 1e-5), ("?", 1e-5)],
)
def test_dtypes_give_their_numbers(dtype: str, tol: float) -> None:
    values = VALUES.astype(dtype)
    check(da.from_array(values, chunks=(CHUNK, P)), values, tol)
    check(declared(lambda block: block.astype(dtype)), values, tol)


REFUSED = {
    "object": VALUES.astype(object),
    "dates": VALUES.astype("M8[D]"),
    "durations": VALUES.astype("m8[h]"),
    "text": VALUES.astype("U4"),
    "longdouble": VALUES.astype(np.longdouble),
    "records": np.rec.fromarrays([VALUES[:, 0], VALUES[:, 1]], names="a,b"),
}


def repair_in(message: str) -> str:
    """The expression that a message says to write."""
    for start in ("numpy.stack(", "(X - ", "X.", "X / "):
        if start in message:
            text = message[message.index(start) :].rstrip(".")
            return re.split(r", or | or encode", text)[0]
    raise AssertionError(message)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_dtypes_that_are_refused_and_the_line_that_repairs(name: str, lazy: bool) -> None:
    values = REFUSED[name]
    x: Any = values
    if lazy or name == "object":  # objects in memory are looked at: they may be numbers
        x = da.from_array(np.asarray(values), chunks=CHUNK)
    with pytest.raises(InvalidTypeError, match="cannot be used") as error:
        streampca.open(x)
    repaired = eval(repair_in(str(error.value)), {"X": x, "numpy": np})
    matrix = streampca.open(repaired)
    expected = VALUES[:, :2] if name == "records" else VALUES / (24 if name == "durations" else 1)
    np.testing.assert_allclose(matrix.read(0, 0, N), expected)


def test_no_date_is_a_hole() -> None:
    days = VALUES.astype("M8[D]")
    days[3, 2] = "NaT"
    with pytest.raises(InvalidTypeError) as error:
        streampca.open(days)
    assert np.isnan(eval(repair_in(str(error.value)), {"X": days, "numpy": np})[3, 2])


LATE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "object": (lambda b: b.astype(object), r"X\.map_blocks\(lambda block: block\.astype"),
    "complex": (lambda b: b + 1j, r"X\.map_blocks\(numpy\.real\)"),
    "dates": (lambda b: b.astype("i8").astype("M8[D]"), "where the chunk is made"),
    "text": (lambda b: b.astype(str), "where the chunk is made"),
    "records": (lambda b: np.zeros(b.shape, FIELDS), "where the chunk is made"),
}


@pytest.mark.parametrize("name", LATE)
def test_chunks_of_a_kind_that_was_not_declared(name: str) -> None:
    function, message = LATE[name]
    with pytest.raises(InvalidTypeError, match=f"declared as float64; expected real.*{message}"):
        model_of(declared(function))


def test_chunks_of_objects_and_complex_numbers_are_repaired() -> None:
    objects = declared(LATE["object"][0])
    check(objects.map_blocks(lambda block: block.astype("float64")), VALUES)
    check(declared(LATE["complex"][0]).map_blocks(np.real), VALUES)


@pytest.mark.parametrize(
    ("found", "told"), [("i8", "i1"), ("i4", "i2"), ("u8", "u4"), ("u1", "i1")]
)
def test_integers_beyond_the_declared_dtype_are_refused(found: str, told: str) -> None:
    """They wrapped around without a word."""
    factor = 12 if found == "u1" else np.iinfo(told).max // 4
    x = declared(lambda block: (factor * abs(block)).astype(found), told)
    line = rf"X\.map_blocks\(\.\.\., dtype='{np.dtype(found)}'"
    with pytest.raises(InvalidTypeError, match=line):
        from_dask(x).read(0, 0, N)
    fits = declared(lambda block: abs(block).astype(found), told)
    np.testing.assert_array_equal(from_dask(fits).read(0, 0, N), np.abs(VALUES))


# -- on a GPU ---------------------------------------------------------------------------------


class ndarray(np.ndarray):
    """Stands for an array of CuPy, which refuses to be converted as well."""

    def __array__(self, *args: Any, **more: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


ndarray.__module__ = "cupy"


def test_chunks_on_a_gpu_are_refused_by_name() -> None:
    here = np.zeros((0, 0)).view(ndarray)
    known = da.Array(PLAIN.dask, PLAIN.name, PLAIN.chunks, meta=here)
    late = declared(lambda block: block.view(ndarray))
    line = r"cupy\.ndarray, which lies on a GPU.*X\.map_blocks\(cupy\.asnumpy, dtype=X\.dtype"
    for x in (known, late):
        with pytest.raises(InvalidTypeError, match=line):
            model_of(x)
    with pytest.raises(InvalidTypeError, match=r"cupy\.ndarray.*cupy\.asnumpy\(X\)"):
        model_of((VALUES * 1.0).view(ndarray))
    fitted = model_of(VALUES * 1.0)
    with pytest.raises(InvalidTypeError, match=line), dask.config.set(scheduler="sync"):
        fitted.transform(late).compute()
    repaired = known.map_blocks(np.array, dtype=known.dtype, meta=np.empty((0, 0)))
    check(repaired, VALUES)
