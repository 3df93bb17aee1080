"""Extended, complex and Hilbert EOFs; patterns in time; weights of variables."""
