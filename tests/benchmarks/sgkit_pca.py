"""sgkit's PCA of a PLINK fileset: ``python sgkit_pca.py STEM OUT K``.

The .bed is decoded by NumPy, since sgkit brings the Zarr of its own choice. Run by
:mod:`tests.benchmarks.genotypes` with an interpreter that has sgkit; needs nothing of ours.
Writes OUT.eigenval (of ZZ'/M, like PLINK) and OUT.eigenvec.
"""

from __future__ import annotations

import sys

import dask
import dask.array as da
import numpy as np
import sgkit
import xarray

VARIANTS = 4096  # of a chunk
COPIES = np.array([2, np.nan, 1, 0], np.float32)  # of A1, by the two bits of a .bed


def decoded(path: str, n: int, start: int, stop: int) -> np.ndarray:
    """(variants, samples) copies of A1, NaN = missing."""
    stride = -(-n // 4)
    packed = np.fromfile(path, np.uint8, (stop - start) * stride, offset=3 + start * stride)
    bits = packed.reshape(stop - start, stride, 1) >> np.array([0, 2, 4, 6], np.uint8) & 3
    return COPIES[bits.reshape(stop - start, 4 * stride)[:, :n]]


def opened(stem: str) -> da.Array:
    """The calls of a fileset, variants x samples, in chunks of variants."""
    with open(f"{stem}.fam") as fam, open(f"{stem}.bim") as bim:
        n, p = sum(1 for _ in fam), sum(1 for _ in bim)
    pieces = [
        da.from_delayed(
            dask.delayed(decoded)(f"{stem}.bed", n, i, min(i + VARIANTS, p)),
            (min(VARIANTS, p - i), n),
            np.float32,
        )
        for i in range(0, p, VARIANTS)
    ]
    return da.concatenate(pieces)


def main(stem: str, out: str, k: int) -> None:
    """Missing calls hold the mean, and variants of one allele are left out first, as sgkit asks."""
    dosage = opened(stem)
    mean = da.nanmean(dosage, axis=1)
    kept = ((mean > 0) & (mean < 2)).compute()
    dosage, mean = dosage[kept], mean[kept]
    dosage = da.where(da.isnan(dosage), mean[:, None], dosage)
    data = xarray.Dataset({"call_alternate_allele_count": (("variants", "samples"), dosage)})
    result = sgkit.pca(data, n_components=k, ploidy=2, merge=False).compute()
    n, used = dosage.shape[1], dosage.shape[0]
    # its variances divide by n; Patterson's scaling by sqrt(p (1 - p)), half the variance under HWE
    values = result.sample_pca_explained_variance.values * n / used / 2
    np.savetxt(f"{out}.eigenval", values)
    head = "\t".join(["#IID", *(f"PC{i + 1}" for i in range(k))])
    rows = result.sample_pca_projection.values
    with open(f"{out}.eigenvec", "w") as file:
        file.write(head + "\n")
        for i, row in enumerate(rows):
            file.write("\t".join([str(i), *(f"{x:.9g}" for x in row)]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
