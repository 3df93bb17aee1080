"""Preprocessing of count matrices, lazy and sparse: ``streampca.preprocess.log1p(...)``.

A class is fitted to some rows and applied to any; the function of the same name does both.
"""

from streampca.models.highly_variable import HighlyVariable, highly_variable
from streampca.models.preprocessing import (
    Log1p,
    LogEntropy,
    NormalizeTotal,
    Preprocessor,
    TfIdf,
    log1p,
    log_entropy,
    normalize_total,
    tf_idf,
)

load = Preprocessor.load

__all__ = [
    "HighlyVariable",
    "Log1p",
    "LogEntropy",
    "NormalizeTotal",
    "TfIdf",
    "highly_variable",
    "load",
    "log1p",
    "log_entropy",
    "normalize_total",
    "tf_idf",
]
