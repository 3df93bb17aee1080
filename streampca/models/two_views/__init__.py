"""Models of X and Y: CCA, MCA, cross-correlation."""
