"""Data along rows and columns: weights, designs, names of features."""
