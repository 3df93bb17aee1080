"""PCA of genotypes: counts, filters, LD pruning, kinship, unrelated samples, projection.

```sh
streampca fit chr*.bed --scale hwe -k 10 -o models/geno --out tables/geno   # .eigenvec, .eigenval
streampca fit x.bed --loadings v.zarr --relationship grm.zarr --out tables/x --freq   # and .afreq
streampca fit --bfile x --keep unrelated.txt --maf 0.01 --geno 0.05 --ld-r2 0.2 -k 10
streampca fit --config configs/genotypes.yaml
streampca plot models/geno --kind scores --panel populations.txt -o scores.png
streampca project models/geno new.bed -o new.tsv --shrinkage oadp
streampca prune x.bed --ld-r2 0.2 --ld-window 500 -o kept.txt
streampca relate x.bed --king-cutoff 0.0884 --make-king-table -o x  # .kin0, .king.cutoff.in.id
streampca fit x.bed --unrelated auto --ld-r2 0.2 --maf 0.01 -k 10 -o models/air --out tables/air
streampca relate x.bed --pc-relate models/air -k 4 -o x  # x.pcrelate.kin0 and .inbreeding
streampca relate x.bed --make-grm-bin -o x  # .grm.bin, .grm.N.bin, .grm.id
streampca fit x.bed --pca-extract kept.txt --king-cutoff 0.0884 -k 10 --out tables/y  # in one read
streampca convert x.bed -o x.zarr
```

```python
model = streampca.GenotypePCA(10, scale="hwe", maf=0.01).fit("chr*.bed")  # or .pgen, VCF Zarr, ...
model.eigenvalues_  # of ZZ'/M, as PLINK's .eigenval; explained_variance_ beside it
model.tracy_widom_  # EIGENSOFT's significance of each component
model.fit_transform("x.bed")  # scores; eigenvectors_, frequencies_, result_.missing_by_sample, ...
model.result_.to_xarray()  # all of it, labelled
found = streampca.kinship("x.bed")  # found.kinship, found.related("first"), found.unrelated(0.0884)
air = streampca.GenotypePCA(10, unrelated="auto").fit("x.bed")  # air.result_.fitted (n,)
streampca.pc_relate("x.bed", air, n_components=4)  # .kinship, .inbreeding, .related("first")
streampca.relatives("x.bed", "x.kin0")  # related pairs, also where n x n does not fit
streampca.grm("x.bed").relationship  # as plink2 --make-grm-bin
streampca.project_samples(model, "new.bed")  # alleles matched, swapped, holes solved for
```

**Counts and filters.** Copies of the first allele (A1; ALT in a VCF Zarr) are counted. A missing
call holds its variant's mean. Variants that are monomorphic, all missing, rare (`maf`) or
ill-called (`max_missing`) are left out and counted; they never stop a fit. Autosomes and XY only,
unless you ask for more, as in plink2; chromosome X then counts as diploid in everyone. With
`--ld-r2` the order is PLINK's: samples by `--mind`, variants by `--geno` and `--maf`, then pruning.
What was left out, and why, is reported. A config file holds the same options; those on the command
line win. Outputs are checked before anything is read, and replaced only with `--overwrite`.

**PGEN and dosages.** `x.pgen` (or `--pfile x`) is read with its `.pvar`, `.pvar.zst` or `.bim`, and
its `.psam` or `.fam`. A .pgen of calls has the bits of the .bed. Where it stores dosages these are
read, as PLINK does: they count in frequencies, `maf`, components and projections, and a dosage that
is missing in `max_missing` (`--geno dosage` of PLINK; its `--geno` judges the calls). Kinship and
pruning take the calls that are stored. `--no-dosages` takes the calls everywhere. Variants of more
than two alleles are refused, or left out by `--multiallelic drop`. Chromosomes in files of their
own, of any format, are named by a pattern: `'chr*.pgen'`, `'chr{1..22}.pgen'`; the samples of all
must be the same, in one order.

**Differences from PLINK.** Frequencies, `maf` and pruning use all fitted samples, also children of
others (with a warning), where PLINK asks founders only: with the founders as `fit_samples` they are
PLINK's. Variants of a .bim with a negative position are left out, as in PLINK. Monomorphic variants
do not count in the M of the eigenvalues; PLINK counts them unless `--maf` takes them out.

**Relatives.** `kinship` counts KING-robust kinship of all pairs in one pass: integers over all
variants that pass the filters (not the pruned ones), the same for any number of workers.
`related("second")` lists pairs of that degree or closer (duplicates .354, first .177, second .0884,
third .0442); `unrelated(cutoff)` is PLINK's greedy rule. The command `relate` writes its files;
`--fit-samples x.king.cutoff.in.id` fits on the unrelated samples and scores everyone. The table is
plink2's to every printed digit, with two exceptions: variants on chromosome 0 do not count here,
and alpha 3.5 counts a rare variant in NSNP where one of two samples has no call and the other two
copies of the rare allele.

A fit looks at what came out. `RelatedSamplesWarning` names components of which one sample, copies
of one or a family hold more than half, and fitted samples whose kinship is .177 or more by the n x
n matrix of a wide fit (`result_.relatives`, found as KING's on HapMap 3 and 1000 Genomes). `info`
and reports repeat it. A tall or iterated fit has no such matrix: it names outliers and copies by
their scores.

**Ancestry and relatives together.** `unrelated="auto"` (`fit --unrelated auto`) is PC-AiR: kinship
of all autosomal variants that pass the filters, in one pass; `pcair_partition` then takes the
sample with most relatives (above 2^-5.5 = .0221) out of the unrelated set until no two in it are
related, and prefers to keep samples that are divergent from many, so that every ancestry stays. The
fit is of the unrelated samples, and all are scored: `shrinkage="oadp"` corrects the scores of the
others. With `--ld-r2`, kinship counts the variants before pruning, and pruning asks the unrelated
samples. `info` says how many samples were projected, and why; FITTED in the `.eigenvec` says which.
`unrelated=` also takes a list, or a partition by another kinship or threshold.
`pc_relate(X, model)` (`relate --pc-relate MODEL`) adjusts kinship and inbreeding for the ancestry
that the components hold: KING-robust kinship is too low between samples of unlike ancestry, also of
relatives. As in GENESIS, frequencies below .01 or above .99 for a sample's ancestry do not count,
and a missing call is left out of the sums and is the variant's mean in the regression. The plain
ratio is too low, by 1 / 2n for unrelated pairs of n fitted samples; by default that is taken back:
140 first-degree pairs of admixed samples came out at .249 +- .006 where KING had .245 +- .012, and
28,000 unrelated pairs at .000 +- .004 where KING had -.039 +- .042 (20,000 variants). The
partition can be made again by it: `pcair_partition(adjusted, divergence=kinship(X))`.

**One read.** `GenotypePCA(kinship=True)`, and `fit` with `--king-cutoff`, `--king-table-filter`
or `--make-king-table`, count kinship of all samples in the read of the fit: over all
variants that pass the filters, while the components are of those that `--ld-r2` or `--pca-extract`
leaves. Both are those of a read of their own. Where counts of all pairs do not fit into memory,
`relatives` and `relate` take the samples in strips, a pass for each, and write the same table;
`--checkpoint` keeps what is done.

**Relationship.** `grm` and `relate --make-grm-bin` give plink2's matrix: values to 1e-6, numbers of
variants and ids to the byte; `cov` and `meanimpute` as there. `missing="pairwise"` (`--missing
pairwise`) takes the components of that matrix, as plink2's `--pca` without `meanimpute`:
monomorphic variants count. It need not be positive semidefinite; the certificate is of its
eigenpairs. Loadings are then unit columns that are not quite orthogonal.

**Tables.** `fit_samples` fits on unrelated samples and scores everyone in the same two passes; the
column FITTED (1 or 0) of the `.eigenvec`, and `result_.fitted`, say who was fitted. `--freq` writes
`PREFIX.afreq`, `#CHROM ID REF ALT ALT_FREQS OBS_CT` of every variant that was read: ALT is the
counted allele (A1), OBS_CT the alleles observed in the fitted samples. `--missing-counts` writes
PLINK 2's `.smiss` and `.vmiss`. `--allele-wts` writes loadings (`.eigenvec.allele`) and counts
(`.acount`) from which PLINK 2 makes the scores of the fit; its line is in `--help`.
`--eigenval-values smartpca` gives smartpca's scale: all n - 1 eigenvalues add up to n - 1.

**Loadings** stream to a Zarr group with `--loadings`, variant block by variant block, with the
variants' labels and statistics; none of it is held. 300 samples x 2,000,000 variants take 272 MiB
in all, 200,000 variants 261. `components_` and projections read them from there; after a move give
`result_.with_components(path)`, or `--loadings` of `project`. The group and
`--relationship` open with labels: `xarray.open_zarr(path, consolidated=False)`. A component that
one short region makes (linkage, an inversion) is named in a warning.

**Projection** matches variants by id, or by position and alleles. It solves for the scores from
what is observed instead of taking holes as zeros, and reports the coverage of every sample.
`shrinkage="oadp"` undoes the pull of projections towards the centre.
"""
