"""Pictures of a fitted result. Matplotlib loads when the first one is drawn."""

from streampca.plots.arrows import biplot, correlation_circle, texts
from streampca.plots.curves import baselines, r2, sweeps, validation
from streampca.plots.embedding import embedding, embedding_page
from streampca.plots.hovmoeller import hovmoeller
from streampca.plots.images import images
from streampca.plots.loadings import loadings, loadings_table, manhattan
from streampca.plots.maps import map
from streampca.plots.scores import pairs, projected, scores
from streampca.plots.series import pcs
from streampca.plots.spectrum import dimension, scree, spectrum

__all__ = [
    "baselines",
    "biplot",
    "correlation_circle",
    "dimension",
    "embedding",
    "embedding_page",
    "hovmoeller",
    "images",
    "loadings",
    "loadings_table",
    "manhattan",
    "map",
    "pairs",
    "pcs",
    "projected",
    "r2",
    "scores",
    "scree",
    "spectrum",
    "sweeps",
    "texts",
    "validation",
]
