"""Supported kinds of arrays, and the conversion to suggest for each of the others."""

from __future__ import annotations

from typing import Any

import scipy

from streampca.errors import InvalidTypeError

ITSELF = "X is a"
CHUNKS = "chunks of this Dask array are"
GPU = {
    "cupy": "cupy.asnumpy(X)",
    "cupyx": "cupy.asnumpy(X)",
    "cudf": "X.to_pandas()",
    "torch": "X.cpu()",
}


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
