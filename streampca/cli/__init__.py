"""The command line: arguments in, words out.

```sh
streampca plan matrix.zarr -k 20 --memory-limit 512MiB
streampca fit matrix.zarr -k 20 --scale std -o model --scores scores.zarr
streampca fit climate.nc --variable sst --weights coslat --remove month -k 5 --eofs eofs.nc
streampca fit cells.h5ad -k 50 --remove batch --anndata   # obsm["X_pca"], varm["PCs"], uns["pca"]
streampca plan climate.nc --variable sst --variable slp --dim time --sample-weight weights.csv
streampca transform model new.zarr -o new-scores.zarr
streampca info model
streampca plot model --kind loadings -o loadings.png
streampca fit matrix.zarr --model ppca -k 5 -o ppca   # any model; --model NAME --help: options
```

`--weights`, `--sample-weight` and `--remove` take a variable of the source (of an AnnData a column
of obs or var) or a file: `.npy`, `.csv`, `.tsv`, `area.nc` or `area.nc:name`. A first column named
as the samples' dimension, or unnamed, says whose rows they are; without it they go in order.
`--remove` may be repeated; `transform --remove new.csv` has the covariates of new rows. `--json`
prints for machines, errors too. Outputs that exist are refused before anything is read.
`--log-format json`, `--log-file` and `--progress-file` say what a long command does.
"""

from streampca.cli.commands import main

__all__ = ["main"]
