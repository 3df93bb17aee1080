"""Structured data for demonstrations, benchmarks and tests, written block by block."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
import zarr.codecs

from streampca.errors import InvalidInputError, OccupiedError
from streampca.sources.genotypes.allele_counts import MISSING_CALL


@dataclass(frozen=True)
class GenotypeRecipe:
    """Genotypes of a structured population (Balding and Nichols 1995, "A method for quantifying
    differentiation between populations", eq. 1).

    For each variant an ancestral allele frequency is drawn from U(0.05, 0.95), for each
    population its own from Beta(f (1-F)/F, (1-f) (1-F)/F), with F rising from ``fst`` for the
    first to three times that for the last, and each genotype is Binomial(2, frequency).
    ``missing`` of all calls are then replaced by -1 at random.
    """

    samples: int = 3192
    variants: int = 50_000
    populations: int = 5
    fst: float = 0.01
    missing: float = 0.005
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < self.populations or self.variants < 1:
            raise InvalidInputError(
                f"{self.samples} samples x {self.variants} variants; expected at least one variant "
                f"and {self.populations} samples"
            )

    @property
    def population_of(self) -> np.ndarray[Any, Any]:
        """(samples,) the population of each sample, in shuffled order."""
        rng = np.random.default_rng([self.seed, 1])
        return rng.permutation(np.arange(self.samples) % self.populations)

    def block(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """(samples, stop - start) int8 genotypes, independent of the other ranges."""
        rng = np.random.default_rng([self.seed, 2, start])
        m = stop - start
        ancestral = rng.uniform(0.05, 0.95, m)
        drift = np.linspace(self.fst, 3.0 * self.fst, self.populations)[:, None]
        spread = (1.0 - drift) / drift
        own = rng.beta(ancestral * spread, (1.0 - ancestral) * spread, (self.populations, m))
        at_least_one = (1.0 - (1.0 - own) ** 2).astype(np.float32)[self.population_of]
        both = (own**2).astype(np.float32)[self.population_of]
        u = rng.random((self.samples, m), dtype=np.float32)
        calls = (u < at_least_one).astype(np.int8)
        calls += u < both
        lost = rng.integers(0, calls.size, rng.binomial(calls.size, self.missing))
        calls.reshape(-1)[lost] = MISSING_CALL
        result: np.ndarray[Any, Any] = calls
        return result


CHUNK = 1024  # variants


def write_genotypes(
    path: str | os.PathLike[str],
    recipe: GenotypeRecipe,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the recipe's matrix as a Zarr v3 array, samples x variants, int8.

    A chunk holds CHUNK variants of all samples. Blosc zstd, bitshuffle, crc32c.
    """
    try:
        array = zarr.create_array(
            os.fspath(path),
            shape=(recipe.samples, recipe.variants),
            chunks=(recipe.samples, min(CHUNK, recipe.variants)),
            dtype="int8",
            fill_value=0,
            compressors=[
                zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
                zarr.codecs.Crc32cCodec(),
            ],
            dimension_names=("sample", "variant"),
            overwrite=overwrite,
            config={"write_empty_chunks": True},
            attributes={"missing_call": MISSING_CALL, "recipe": vars(recipe)},
        )
    except (zarr.errors.ContainsArrayError, zarr.errors.ContainsGroupError, FileExistsError):
        raise OccupiedError(f"{path} exists already; remove it or pass overwrite") from None
    for start in range(0, recipe.variants, CHUNK):
        stop = min(start + CHUNK, recipe.variants)
        array[:, start:stop] = recipe.block(start, stop)
        if progress is not None:
            progress(stop, recipe.variants)
