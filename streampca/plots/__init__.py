"""Pictures of a fitted result. Matplotlib loads when the first one is drawn."""

from streampca.plots.curves import baselines, dimension, r2, scree, validation
from streampca.plots.scores import loadings, loadings_table, scores

__all__ = [
    "baselines",
    "dimension",
    "loadings",
    "loadings_table",
    "r2",
    "scores",
    "scree",
    "validation",
]
