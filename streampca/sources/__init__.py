"""Anything as a ChunkedMatrix. The only room that knows file formats and dimension names.

`fit`, `plan` and `transform` take a path or URL, a `zarr.Array`, a Dask array, an xarray object,
NumPy, data frames (pandas, polars, pyarrow, Dask), scipy.sparse, or what `streampca.open` returned.
`fit(da, dim="time")` makes times the samples; the other dimensions become features and come back in
`result_.to_xarray()`. All variables of a Dataset are taken side by side, or those of
`variable=[...]`, and Datasets come back. Dask in, Dask out: scores and reconstructions of lazy
arrays are lazy, inside xarray too.

**Extras.** NetCDF needs `pip install 'streampca[netcdf]'`, `.h5ad` needs `streampca[h5ad]` (never
the package anndata), Parquet, Arrow and text need `streampca[tables]`, object storage needs
`streampca[obstore]`, Icechunk needs `streampca[icechunk]`, PGEN needs `streampca[pgen]`, VCF and
BCF need `streampca[vcf]`.

**Images.** A folder or pattern of pgm, png, jpg or tiff files (`streampca[images]`) is a matrix of
images x pixels; sub-folders are labels. `open_images(..., resize=(112, 92), mode="grey")` makes
unlike ones alike. `streampca convert faces/ -o faces.zarr` keeps the axes of the pixels, so that
means and components come back as pictures: `streampca.plots.images(model)`.

**Sparse matrices** stay sparse. CSR streams samples, CSC streams features. Centring and scaling are
implicit: products, scores, errors and column statistics visit the stored entries alone. A p x p
scatter or n x n Gram matrix expands one tile at a time.

```python
streampca.open("cells.h5ad")  # AnnData: X, or variable="layers/counts", "raw/X"; also as Zarr
streampca.open("matrix.mtx.gz")  # MatrixMarket; in a folder of 10x the columns are the cells
streampca.open("x.npz")  # scipy.sparse, and in memory; Dask of sparse chunks; 10x .h5
```

**Absent chunks.** A Zarr chunk that is absent is an error, not zeros. `missing_chunks="fill"` reads
its fill value, `"mask"` missing cells. The check needs `streampca.open` or a path; a Dask or xarray
wrapper hides the store.

**Dask.** A Dask array of unknown chunk sizes (rows that a mask chose) is computed once more by
`fit`, with a warning, and refused by `plan` and `open`: call `compute_chunk_sizes()` once. Of a
Dask data frame whose partitions do not know their rows (those of Parquet do), the narrowest column
is computed first, and the plan says so.

**Object storage.** obstore reads `s3://`, `gs://`, `az://` and `abfs://`; model stores lie there
too. Keys, region and endpoint come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
...) or from `storage_options=`, with obstore's names or s3fs's (`key`, `secret`, `endpoint_url`).
They never reach models, plans or messages. Only a server on this machine is asked without TLS,
others with `AWS_ALLOW_HTTP=true`. Without credentials public objects are read. The metadata service
of a cloud machine is asked only if `AWS_METADATA_ENDPOINT`, `AWS_IMDSV1_FALLBACK` or options of
those names say so. `https://` and `file://` are read too. Chained URLs are refused: open such a
store with Zarr and hand over the array.

**Icechunk.** A snapshot is pinned when a repository is opened (`branch`, `tag` or `snapshot`; the
head of `main` by default) and read to the end, whoever commits meanwhile.
"""

from streampca.sources.images import open_images
from streampca.sources.opening import as_matrix, counted, open
from streampca.sources.pairs import as_pair, same_rows
from streampca.sources.zarr.appending import append, commit_rows

__all__ = [
    "append",
    "as_matrix",
    "as_pair",
    "commit_rows",
    "counted",
    "open",
    "open_images",
    "same_rows",
]
