"""Pictures of a fitted result. Matplotlib loads when the first one is drawn."""

from streampca.plots.curves import dimension, r2, scree, validation
from streampca.plots.embedding import embedding, embedding_page
from streampca.plots.images import images
from streampca.plots.scores import loadings, loadings_table, scores

__all__ = [
    "dimension",
    "embedding",
    "embedding_page",
    "images",
    "loadings",
    "loadings_table",
    "r2",
    "scores",
    "scree",
    "validation",
]
