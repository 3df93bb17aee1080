"""Labelled arrays: xarray, NetCDF, and the CF conventions of all formats."""
