"""Models of X and Y: CCA, MCA, CPCCA, cross-correlation."""
