"""Ratings of users and items as a sparse matrix."""
