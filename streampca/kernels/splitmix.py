"""splitmix64: numbers that look random, made anywhere from an index alone.

Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import numpy as np

from streampca.kernels.blas import Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the odd number nearest to 2^64 / golden ratio


def mixed(x: Array) -> Array:
    """The finishing hash of states x, uint64. States that a generator passes are GOLDEN apart."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
