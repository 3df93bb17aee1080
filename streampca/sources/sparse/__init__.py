"""Sparse matrices in memory and in files, AnnData and 10x Genomics among them."""
