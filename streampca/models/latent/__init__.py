"""Latent variables with a likelihood: probabilistic PCA and factor analysis."""
