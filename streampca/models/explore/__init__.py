"""Looking before modelling: dimensions, variable features, baselines, random projections."""
