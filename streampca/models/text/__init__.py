"""Texts: their terms counted in bounded memory, and latent semantic analysis of the counts."""
