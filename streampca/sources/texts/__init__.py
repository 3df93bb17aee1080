"""Texts, one after another, from files, columns and iterables."""
