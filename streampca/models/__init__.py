"""What it means: one estimator per file, and the frozen result."""
