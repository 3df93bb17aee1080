"""New rows for a fitted model: from any data to blocks, and back with labels."""
