"""Preprocessing of count matrices, lazy and sparse: `streampca.preprocess.log1p(...)`.

A class is fitted to some rows and applied to any; the function of the same name does both.

```python
counts = streampca.preprocess.normalize_total("cells.h5ad", target_sum=1e4)  # one pass, then lazy
logs = streampca.preprocess.log1p(counts)
genes = streampca.preprocess.highly_variable(logs, n_top=2000)  # one pass; scanpy's numbers
pca = streampca.PCA(50).fit(genes.of(logs))
streampca.write_anndata(pca, "cells.h5ad", logs)  # obsm["X_pca"], varm["PCs"], highly_variable
svd = streampca.TruncatedSVD(100).fit(streampca.preprocess.log_entropy(terms))  # or tf_idf
svd.transform(queries)  # raw counts: weighted as the documents were, also after save and load
weighting = streampca.preprocess.LogEntropy().fit(terms)  # the same as an object: .transform, .save
```

On the command line: `streampca fit cells.h5ad --normalize-total 1e4 --log1p --highly-variable 2000
-k 50 --anndata`.

A matrix remembers its preprocessing, a model keeps that of its fit, and `transform` applies it to
raw rows: weights, the total of `normalize_total()` and chosen genes are those of the fit. Rows that
were weighted by themselves are refused. An array in memory counts as raw. `streampca convert x.mtx
-o x.zarr` keeps a sparse matrix sparse (AnnData in Zarr).
"""

from streampca.models.contract.preprocessing import (
    Log1p,
    LogEntropy,
    NormalizeTotal,
    Preprocessor,
    TfIdf,
    log1p,
    log_entropy,
    normalize_total,
    tf_idf,
)
from streampca.models.explore.highly_variable import HighlyVariable, highly_variable

load = Preprocessor.load

__all__ = [
    "HighlyVariable",
    "Log1p",
    "LogEntropy",
    "NormalizeTotal",
    "TfIdf",
    "highly_variable",
    "load",
    "log1p",
    "log_entropy",
    "normalize_total",
    "tf_idf",
]
