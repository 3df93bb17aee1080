"""Supported kinds of arrays and dtypes, and the conversion to suggest for each of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from streampca.errors import InvalidTypeError
from streampca.kernels import Array

ITSELF = "X is a"
CHUNKS = "chunks of this Dask array are"
GPU = {
    "cupy": "cupy.asnumpy(X)",
    "cupyx": "cupy.asnumpy(X)",
    "cudf": "X.to_pandas()",
    "torch": "X.cpu()",
}
DAYS = "numpy.timedelta64(1, 'D')"
REPAIRS = {
    "O": "object arrays have no fixed size: convert with X.astype('float64')",
    "M": f"Dates become days with (X - numpy.datetime64('1970-01-01')) / {DAYS}",
    "m": f"Durations become days with X / {DAYS}",
}
BOTH_PARTS = {  # as features, by the kind of object
    "array": "numpy.concatenate([X.real, X.imag], axis=1)",
    "list": "X = numpy.asarray(X); numpy.concatenate([X.real, X.imag], axis=1)",
    "frame": "X = X.to_numpy(); numpy.concatenate([X.real, X.imag], axis=1)",
    "sparse": "scipy.sparse.hstack([X.real, X.imag])",
    "xarray": "xarray.Dataset({{'real': X.real, 'imag': X.imag}}) with dim={dim!r}",
    "zarr": "X = dask.array.from_zarr(X); dask.array.concatenate([X.real, X.imag], axis=1)",
}


def check_dtype(dtype: np.dtype[Any], kind: str = "array", dim: Any = None) -> None:
    """Raise InvalidTypeError for anything but real numbers.

    kind : of object, of BOTH_PARTS.  dim : of its samples, where named.
    """
    if dtype.kind in "buif" and dtype.itemsize <= 8:
        return
    repair = REPAIRS.get(
        dtype.kind, "convert with X.astype('float64') or encode categories as numbers"
    )
    if dtype.kind == "c":
        repair = (
            "Complex data not supported: their real and imaginary parts can be features. Use "
            f"{BOTH_PARTS[kind].format(dim=dim)}"
        )
    if dtype.names:
        repair = (
            f"Take one of its fields, X[{dtype.names[0]!r}], or all of them as features: "
            "numpy.stack([X[name] for name in X.dtype.names], axis=-1)"
        )
    raise InvalidTypeError(f"dtype {dtype} cannot be used; expected real numbers. {repair}.")


def refuse_gpu(values: Any, what: str = ITSELF) -> None:
    """Raise InvalidTypeError for arrays on a GPU.  what : begins the message."""
    kind, package = type(values), _package(values)
    if package not in GPU or (package == "torch" and values.device.type == "cpu"):
        return
    name = f"{package}.{kind.__name__}"
    line = "X.map_blocks(cupy.asnumpy, dtype=X.dtype, meta=numpy.empty((0, 0)))"
    if what == ITSELF:
        line = GPU[package]
    raise InvalidTypeError(
        f"{what} {name}, which lies on a GPU; expected arrays in main memory. Use {line}"
    )


def from_tensor(values: Any) -> Any:
    """A tensor of PyTorch in main memory as the NumPy array of the same memory; others as they are.

    Raises InvalidTypeError for dtypes that NumPy does not have.
    """
    if _package(values) != "torch":
        return values
    try:
        return values.detach().numpy()
    except TypeError as error:
        raise InvalidTypeError(
            f"{ITSELF} torch.{type(values).__name__} of {values.dtype}, which NumPy cannot hold "
            f"({error}). Use X.float()"
        ) from None


def _package(values: Any) -> str:
    return str(type(values).__module__).split(".")[0]


def is_sparse(values: Any) -> bool:
    """Whether this is an array of scipy.sparse or of ``sparse`` (pydata)."""
    return hasattr(values, "todense") and hasattr(values, "nnz")


def as_scipy(values: Any, what: str = ITSELF) -> Any:
    """A 2-D sparse array as scipy.sparse; arrays of scipy are returned unchanged.

    what : begins the message. Cost: a copy of the indices.
    Raises InvalidTypeError where it is not 2-D, or its fill value is not 0.
    """
    if scipy.sparse.issparse(values):
        return values
    name = f"sparse.{type(values).__name__}"
    if values.ndim != 2:
        raise InvalidTypeError(
            f"{what} {name} of {values.ndim} dimensions; expected 2, samples x features. Use "
            "X.reshape((X.shape[0], -1))"
        )
    fill = getattr(values, "fill_value", 0)
    if fill != 0:
        line = "X.todense()" if what == ITSELF else "X.map_blocks(lambda block: block.todense())"
        raise InvalidTypeError(
            f"{what} {name} with fill_value={fill}; expected 0 in the cells that are not stored. "
            f"Use {line}"
        )
    if not hasattr(values, "to_scipy_sparse"):  # a dictionary of keys
        values = values.asformat("coo")
    return values.to_scipy_sparse()


def plain_rows(values: Any) -> Any:
    """One chunk of a Dask array as NumPy, masked or scipy.sparse: what a block may hold."""
    refuse_gpu(values, CHUNKS)
    return as_scipy(values, CHUNKS) if is_sparse(values) else values


# 64-bit integers that float64 cannot hold: refused wherever they would be rounded.

LARGEST = 2**53  # up to here float64 holds every integer


def inexact(values: Any, missing_value: float | None = None) -> Array | None:
    """Boolean mask of the values that float64 would round (of the stored entries if sparse).

    None where float64 holds all of them. The missing code may be any number.
    Cost: none, except for 64-bit integers, whose largest and smallest value are computed.
    """
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return None
    data = values if isinstance(values, np.ndarray) else values.data
    if not data.size or (data.max() <= LARGEST and data.min() >= -LARGEST):
        return None
    large = (data > LARGEST) | (data < -LARGEST)
    if missing_value is not None:
        large &= data != missing_value
    return large if large.any() else None


def refuse_inexact(values: Any, missing_value: float | None = None, where: str = "X") -> None:
    """Raise InvalidTypeError where float64 would round a value.  where : for the message."""
    if (large := inexact(values, missing_value)) is None:
        return
    data = values if isinstance(values, np.ndarray) else values.data
    example = int(data[large][0])
    raise InvalidTypeError(
        f"{where} holds the {values.dtype} {example}; expected integers up to 2**53 in size, since "
        "float64 rounds larger ones. Subtract the smallest of each column first, "
        "X - X.min(axis=0); or, where rounding does not matter, X.astype('float64')"
    )
