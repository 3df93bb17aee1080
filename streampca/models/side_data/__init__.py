"""What stands beside rows and columns: weights, designs, names of features."""
