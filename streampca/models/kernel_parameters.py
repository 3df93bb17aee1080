"""The kernel that the parameters of an estimator name, checked against a matrix."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from streampca.errors import InvalidInputError
from streampca.matrix import ChunkedMatrix
from streampca.models.kernel_functions import KERNELS, Kernel
from streampca.models.kernel_width import METRICS
from streampca.models.request import whole_number
from streampca.passes import easier_axis


class KernelParameters(Protocol):
    """Parameters of an estimator that name a kernel."""

    kernel: Any
    gamma: float | str | None
    degree: float
    coef0: float


def checked_kernel(asked: KernelParameters, matrix: ChunkedMatrix, seed: int) -> Kernel:
    """Raises InvalidInputError for a kernel that is not known, or that these rows cannot have."""
    (n, p), name = matrix.shape, asked.kernel
    if not callable(name) and name not in KERNELS:
        raise InvalidInputError(f"kernel={name!r}; expected a function or one of {KERNELS}")
    if name == "precomputed" and n != p:
        raise InvalidInputError(f"a precomputed kernel of {n} x {p}; expected a square matrix")
    if callable(name) and easier_axis(matrix) == 1:
        raise InvalidInputError(
            "a function takes whole rows, and the chunks of X hold few features of many "
            "samples: `streampca convert X -o rows.zarr` first, or name a kernel"
        )
    known = ("function", name) if callable(name) else (name, None)
    shape = (finite("degree", asked.degree), finite("coef0", asked.coef0), known[1])
    if asked.gamma == "median":
        if name not in METRICS:
            raise InvalidInputError(
                f"gamma='median' for kernel={name!r}; expected one of {tuple(METRICS)}, which "
                "have a width, or a number"
            )
        return Kernel(known[0], np.nan, *shape, sampled=seed)
    if isinstance(asked.gamma, str):
        raise InvalidInputError(f"gamma={asked.gamma!r}; expected a number, 'median' or None")
    gamma = 1.0 / p if asked.gamma is None else finite("gamma", asked.gamma)
    if name in METRICS and not gamma >= 0:
        raise InvalidInputError(f"gamma={gamma!r} for kernel={name!r}; expected 0 or more")
    return Kernel(known[0], gamma, *shape)


def finite(name: str, value: Any) -> float:
    """Raises InvalidInputError unless the value is a finite number."""
    if isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value):
        return float(value)
    raise InvalidInputError(f"{name}={value!r:.60}; expected a finite number")


def check_count(k: Any, most: int) -> None:
    """Raises InvalidInputError unless k is None or a number of components up to ``most``."""
    if k is not None:
        whole_number("n_components", k, 1, most, beside="None or ")
