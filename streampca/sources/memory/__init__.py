"""What lies in memory: arrays, lazy arrays, kernel matrices of objects."""
