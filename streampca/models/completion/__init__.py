"""Matrix completion: Hard-Impute and Soft-Impute.

```python
model = streampca.HardImpute([2, 4, 8], validation=0.05).fit("holes.zarr")  # NaN, or missing_value=
model.validation_  # held-out error of every rank and penalty, and of biases alone; the best is kept
model.impute("holes.zarr", out="completed.zarr")  # block by block; model.predict(rows, columns)
model.transform(new_rows)  # scores by what each row observes
streampca.SoftImpute(20, validation=0.05).fit("ratings.mtx")  # the nuclear norm instead of a rank
streampca.PCA(5, missing="impute").fit(X)  # components of the matrix that they complete
```

```sh
streampca impute holes.zarr --rank 2 4 8 --validation 0.05 -o model --completed completed.zarr
streampca impute --config configs/impute.yaml
streampca plot model --kind validation -o curve.png
```

A model of rank r completes the matrix, `min |W (X - Xhat)|^2`, which is never formed. Factors of
the rows lie in memory or in a scratch store, those of the columns in memory; a sweep is one pass
over the data. `solver="als"` solves for rows and columns exactly in turn: on 5,000 x 100 joke
ratings it needs 4 or 5 passes for the objective that 200 iterations of the classic algorithm reach.
`solver="exact"` is that algorithm to the letter. Of a sparse source the stored cells are the
observed ones, a stored zero too, and nothing is made dense.

**Held-out cells** are chosen by a hash of their place, so no mask is stored and chunks do not
matter. With them the model has biases, `x_ij = m + a_i + b_j + u_i'v_j` (`center="biases"`), every
rank is fitted with five ridges around the noise level, and no components at all are a candidate
too. Errors on held-out cells, with this recipe and with biases alone: 4.06 and 4.35 on the joke
ratings, 1.16 and 1.40 on 2,800 x 25 answers of a questionnaire (bfi), .85 and .90 on simulated
943 x 1,682 ratings, 6 % observed. Where only biases were simulated it keeps no component.

**What is filled in** by `impute` and `predict` stays within the least and the largest observed cell
(`bounds=`). `center="both"` and `scale="both"` take the means and scales of rows and columns out
first, by turns of one pass each, until all are 0 and 1 (softImpute's biScale); a new row has those
of what it observes. `fit(X, sample_weight=)` counts a row as often as its weight says, in
`PCA(missing="impute")` too. If too few cells determine a row or column and `alpha` is 0, its
estimate can go beyond anything observed; a warning says so. `trace_` has objective, change and
held-out error of every sweep. With `checkpoint=` an interrupted fit resumes with its
last sweep.
"""
