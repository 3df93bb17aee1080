"""Matrix completion: Hard-Impute and Soft-Impute."""
