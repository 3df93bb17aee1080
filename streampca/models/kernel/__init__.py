"""Kernel PCA, exact and by landmarks, and explicit features of kernels."""
