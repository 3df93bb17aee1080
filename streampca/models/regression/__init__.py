"""Linear models of y on X."""
