"""PCA and what it is made of: plans, passes and solutions of each solver.

**Which solver.** The default is exact. "auto" takes an exact solver that is predicted to take .2 s;
or up to 10 s and 4 times as long as iterating; or 1.25 times as long. Otherwise it iterates. If a
component cannot be certified, it goes over to an exact solver that is predicted to take 2 minutes,
or 4 times as long as iterating. The plan lists that route, and its memory is in the announced peak.
`tol=` means "iterate"; `max_passes=` and `iterated_power=` also mean that it ends there. Genotype
fits iterate only where the exact solver does not fit in memory. Predictions come from shipped
rates, or from those of your machine: `streampca calibrate -o rates.json`, then `rates="rates.json"`
or `--rates`. `warm_start=True` keeps what was accumulated: a fit with more components then reads
nothing, or begins from the space already searched.

**Both sides large.**

```python
pca = streampca.PCA(10, solver="randomized", tol=1e-4, max_passes=8).fit("large.zarr")
pca.certificate_.angle_bound  # radians, for every component
pca.certificate_.beyond  # the largest variance that a direction not searched can have
streampca.PCA(10).plan("large.zarr")  # auto: what it takes, and the predicted time of each solver
```

The first pass looks: column statistics, and leading directions of what passes by. Every further
pass takes a block Krylov step, both products of one read. After each step the residual of every
component is known without reading, and from it a bound of its angle. The fit stops when all bounds
are under `tol`, at `max_passes`, or when the rest cannot be certified in the passes that remain. It
then says which components are not certain and by how much. A flat tail is reported, never passed
over. The bounds assume that no direction was missed altogether: the start block has random columns
for that, and `certificate_.beyond` bounds what a missed one could hold. Where samples are streamed,
components come from the products of the last step, often a whole read nearer. `solver="sketch"`
takes one look at samples that cannot be read again. It bounds what it left out, and warns of
components that this leaves undetermined.

A warning means that something you asked for is not known to the precision of your data type. What
float32 cannot tell apart stands in the certificate alone, printed as "not determined".

**Numbers.** Columns are centred before anything is squared: float64 data with means of 1e6 keep
1e-12 of their variances, float32 data with means of 1e4 keep 1e-5. `solver="tsqr"` resolves
singular values down to 1e-14 of the largest. `"scatter"` and `"gram"` resolve about 1e-8 (float64)
or 3e-4 (float32 and small integers), say so in the plan, and warn when you ask for more. Signs
follow one rule on every path. The same plan gives the same bits on one thread, two lanes or a
cluster, for one type of processor and one build of BLAS.
"""
