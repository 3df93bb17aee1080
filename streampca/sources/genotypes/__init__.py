"""Genotypes: PLINK 1 filesets, VCF Zarr, and what their counts and labels mean."""
