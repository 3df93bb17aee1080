"""PCA and what it is made of: plans, passes and solutions of each solver."""
