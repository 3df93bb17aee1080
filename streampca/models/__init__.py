"""What it means: one estimator per file, and the frozen result.

Every estimator has scikit-learn's contract (`check_estimator`, `Pipeline`, `GridSearchCV`,
`set_output`, routing of weights). `PCA`, `IncrementalPCA`, `TruncatedSVD` and `FactorAnalysis` take
every parameter of scikit-learn's classes; `python -m tests.benchmarks.drop_in` runs scikit-learn's
own tests on them. `predict` of a completion gives cells, so scikit-learn's checks of `predict` on
sparse data do not apply to it.

```python
pca = streampca.PCA(n_components=20).fit("matrix.zarr")  # one pass
pca.explained_variance_ratio_  # of the TOTAL variance
pca.certificate_  # how far each component can be from the true one
pca.transform("new.zarr", out="new-scores.zarr")
pca.save("model")
streampca.load("model")
streampca.plots.scree(pca)
```

**What is fitted.** `weights=` multiplies the features: an array, a DataArray over some of their
dimensions, or `"coslat"`, the root of the cosine of the latitude. `variable_weights(dataset,
dim="time")` lets all variables of a Dataset count the same; a list of weights is their product.
`fit(X, sample_weight=...)` says how often each sample counts; whole numbers give what repeated rows
give. `remove="month"`, `"hour"`, `"trend"`, an (n, c) array of covariates, the name of a column, or
a list of such is projected out of the samples exactly, in the same pass: components and shares of
variance are those of the residuals. `transform` takes cycles and trends from the dates of new
samples, and columns by name.

**Fields.** `pca.eof_` has the views of EOF analysis, with labels: `eofs(scaling)` and
`pcs(scaling)` (0, 1 or 2, as in the eofs package), `as_correlation()`, `as_covariance()`,
`north_errors()`. `pca.project(other, scaling=1)` makes PCs of new times; `pca.reconstruct([1, 3],
lazy=True)` or `out="modes.zarr"` some modes. A fit that streamed the samples keeps no PCs:
`pca.project(da)` makes them, and `reconstruct([1, 3], pca.transform(da))` takes them. Land comes
back as NaN. Results say their units (`K`, `K2`, `K-1`, `1`) and keep the attributes of the variable
(`variable_units`, ...). `da.streampca.pca(5, dim="time")`, `.plan(...)` and `.eof(...)` exist once
both streampca and xarray are imported.

**Batches.** Any `partial_fit`s of an `IncrementalPCA` equal one fit, to rounding. `merge(other)`
and `forget(other)` add and take away; `save_state` and `load_state` keep the p x p state;
`batch_size` bounds the rows held at a time.

**Rotation.** `rotate(pca, "varimax", k=5)` or `"promax"` gives a fitted `RotatedPCA` with
`loadings`, `rotation`, `correlations` and scores that agree. Nothing is read again.

**Holes.** `missing="raise"` stops at the first block with a hole and names it. `missing="mean"` is
exact in one pass. `missing="impute"` completes the matrix (`streampca.models.completion`). Features
without any observation, such as land in an ocean grid, are dropped and named.

**Sparse loadings.** Beyond a p x p covariance `SparsePCA` reads the data for each product with it:
a support of 200 of 500,000 features in 3,000 samples is found in 17 reads, below 1 GiB (`python -m
tests.benchmarks.sparse_components`).

**The sample.** The certificate bounds the errors of the arithmetic. `bootstrap(pca, X)` says how
far components of another sample would lie from these: intervals of variances and shares, angles,
errors of components and scores, by one pass for scores, or none where the fit kept them. `groups=`
draws whole families, `blocks=` pieces of a time series. `jackknife` leaves groups of rows or
features out, `sampling_errors(pca)` takes formulas for normal rows. `plots.scree`, `spectrum`,
`loadings`, `map` and `scores` show it: `certainty=`.

**Likelihoods.** `PPCA` with holes takes 5 to 10 reads where plain EM takes hundreds.
`FactorAnalysis` gives the numbers of R's `factanal`; where p x p is too large, `solver="streamed"`
takes 3 to 5 reads, or 10 to 20 for more factors than the data hold. EM with more components than
the data hold is slow (`PPCA`, `FactorAnalysis(missing="em")`), and its estimate of what is left to
gain can then be several times too small.
"""
