"""Out-of-core PCA and its relatives."""
