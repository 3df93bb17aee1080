"""Every error and warning that streampca raises on purpose: one base class, few children.

Each child is also the built-in exception that a caller would expect, so that
``except ValueError`` keeps working. Messages say what came, what was expected, and
the line that repairs it.
"""

from __future__ import annotations

import sys

from streampca.shown import printable, printable_name


class StreamPCAError(Exception):
    """Base class of all errors raised by streampca.

    Messages quote names that come from files: control characters in them are shown escaped.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class InvalidInputError(StreamPCAError, ValueError):
    """A shape, value or setting that cannot be used."""


class InvalidTypeError(StreamPCAError, TypeError, ValueError):
    """An object or dtype of a kind that cannot be used (scikit-learn expects a ValueError)."""


class NonFiniteError(InvalidInputError):
    """NaN or infinity where the missing-value policy does not allow it."""


class MemoryLimitError(StreamPCAError, MemoryError):
    """The plan needs more memory than the limit, the machine or the worker gives."""


class SourceError(StreamPCAError, OSError):
    """A source that is absent, unreadable or incomplete."""


class DamagedSourceError(SourceError):
    """A part of a source is absent, cut off or altered."""


class AbsentChunkError(DamagedSourceError):
    """A chunk is not there, and was not said to be left out on purpose."""


class NewerFormatError(SourceError):
    """A file that is whole, of a format that only a newer streampca reads."""


class ChangingSourceError(SourceError):
    """A source was changed while it was read."""


class NoAnswerError(SourceError):
    """A source that does not answer in the time that it was given."""


class BusyError(StreamPCAError, RuntimeError):
    """Another process is at the same work, or was first; trying again later may do."""


class ClusterError(StreamPCAError, OSError):
    """Workers that cannot be had, do not answer, or may not be used."""


class MissingDependencyError(StreamPCAError, ImportError):
    """An optional package that this call needs is not installed."""


class NotFittedError(StreamPCAError, ValueError, AttributeError):
    """The estimator was asked for a result before ``fit``."""


class DroppedFeaturesWarning(UserWarning):
    """Features without any observation were left out of the fit."""


class DominantFeatureWarning(UserWarning):
    """One unscaled feature holds more than half of the total variance."""


class AccuracyWarning(UserWarning):
    """Some components lie below what the arithmetic can resolve, or some estimates far beyond what
    the data determine."""


class HeywoodWarning(UserWarning):
    """A factor analysis found a uniqueness at its lower bound: an improper solution."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped before what it computes had stopped changing."""


class LocalComponentWarning(UserWarning):
    """One short region of the genome makes most of a component."""


class NonFounderWarning(UserWarning):
    """Children of other samples count in the allele frequencies."""


class AbsentNamesWarning(UserWarning):
    """Some of the samples or variants of a list are not in the data."""


class IncompleteSourceWarning(UserWarning):
    """Part of a source is not read: numbered files that a pattern does not find, variants that
    their position says to ignore."""


class StuckWorkerWarning(UserWarning):
    """Part of a pass was given to another worker, since one was paused, silent or stuck."""


class UncountedRowsWarning(UserWarning):
    """A Dask array did not know its chunk sizes, and was computed once more to count its rows."""


class NoWorkerWarning(UserWarning):
    """A pass waits: the cluster has no worker."""


class LocalSourceWarning(UserWarning):
    """A source that only this process can read was read here, and not on the workers."""


class OtherVersionWarning(UserWarning):
    """A worker that came to a cluster has another version of streampca, and gets no work."""


class MemoryPlanWarning(UserWarning):
    """A fit that was given a ``memory_limit`` took more memory than its plan had announced."""


class PreprocessingWarning(UserWarning):
    """New rows carry weights of their own, and those of the fit are not known."""


class NoGapWarning(UserWarning):
    """``n_components="gap"`` found no gap that stands above sampling error."""


def not_fitted(name: str) -> Exception:
    """The error for an unfitted estimator, also scikit-learn's own where it is loaded."""
    message = f"This {name} instance is not fitted yet. Call 'fit' before using this method."
    if "sklearn" in sys.modules:
        from sklearn.exceptions import NotFittedError as SklearnNotFittedError

        both = type("NotFittedError", (NotFittedError, SklearnNotFittedError), {})
        result: Exception = both(message)
        return result
    return NotFittedError(message)


def shorten(names: list[str], total: int | None = None) -> str:
    """``a; b; c and 12 more``: the first of ``total`` names, so that they fit into one message."""
    total = len(names) if total is None else total
    shown = "; ".join(map(printable_name, names[:4]))
    return shown if total <= 4 else f"{shown} and {total - 4} more"
