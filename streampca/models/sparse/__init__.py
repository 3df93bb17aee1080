"""Sparse PCA: loadings that are mostly 0."""
