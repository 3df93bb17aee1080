"""PCA of genotypes: counts, filters, LD pruning, projection."""
