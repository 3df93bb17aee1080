"""Count matrices made ready, lazily and sparse: ``streampca.preprocess.log1p(...)``."""

from streampca.models.highly_variable import HighlyVariable, highly_variable
from streampca.models.preprocessing import log1p, log_entropy, normalize_total, tf_idf

__all__ = [
    "HighlyVariable",
    "highly_variable",
    "log1p",
    "log_entropy",
    "normalize_total",
    "tf_idf",
]
