"""Extended and Hilbert EOFs: matrices before a PCA, modes after it."""
