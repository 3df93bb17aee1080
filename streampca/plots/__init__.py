"""Pictures of a fitted result. Matplotlib loads when the first one is drawn."""

from streampca.plots.loadings import loadings, loadings_table
from streampca.plots.r2 import r2
from streampca.plots.scores import scores
from streampca.plots.scree import scree
from streampca.plots.validation import validation

__all__ = ["loadings", "loadings_table", "r2", "scores", "scree", "validation"]
