"""Every error and warning of streampca, and text from outside as messages show it."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

# Showing text from outside: without credentials, and without control characters.

# scheme, user and password, host and path, query and fragment; anywhere in a text
URL = re.compile(
    r"((?:[A-Za-z][\w+.-]*)?://)(?:[^\s/?#]*@|[^\s/?#:@]*:[^\s@'\"<>]*@)?([^\s?#<>'\"]*)(?:[?#][^\s<>'\")]*)?"
)

# control characters except tabs and line ends, line separators, marks of writing direction, and
# lone surrogates, which cannot be encoded
CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
OBEYED = re.compile(f"[{CONTROL}\ud800-\udfff]")
OBEYED_IN_NAMES = re.compile(f"[{CONTROL}\ud800-\udfff\t\n]")
PACKAGE = os.path.join(Path(__file__).parent, "")  # with the separator: a neighbour is not ours


def hide_secrets(text: str) -> str:
    """A URL, or any text with URLs in it, without users, passwords and queries."""
    return URL.sub(r"\1\2", text)


def printable(text: str) -> str:
    """A text of one or more lines with escaped control characters, such as ``\\x1b``."""
    return OBEYED.sub(_escaped, text)


def printable_name(name: object) -> str:
    """A name from the data on one line: tabs and line ends are escaped too."""
    return OBEYED_IN_NAMES.sub(_escaped, str(name))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


# All errors and warnings that streampca raises on purpose: one base class, few children.
#
# Each child is also the built-in exception that a caller would expect: ``except ValueError`` works.
# Messages say what came, what was expected, and the line that repairs it.


class StreamPCAError(Exception):
    """Base class of all errors raised by streampca.

    Messages quote names from files; their control characters are escaped.

    Examples
    --------
    >>> import streampca
    >>> try:
    ...     streampca.open("nowhere.zarr")
    ... except streampca.StreamPCAError as error:
    ...     print(error)
    nowhere.zarr: no such file or directory
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class InvalidInputError(StreamPCAError, ValueError):
    """An unusable shape, value or setting."""


class ConfigError(InvalidInputError):
    """A job file that cannot be used: exit code 78."""


class InvalidTypeError(StreamPCAError, TypeError, ValueError):
    """An object or dtype of an unusable kind (scikit-learn expects a ValueError)."""


class NonFiniteError(InvalidInputError):
    """NaN or infinity that the missing-value policy does not allow."""


class MemoryLimitError(StreamPCAError, MemoryError):
    """The plan needs more memory than the limit, the machine or a worker has.

    smallest : bytes of the smallest ``memory_limit`` that would do; None where no limit would, such
        as on a machine that is too small.
    """

    def __init__(self, message: str = "", smallest: int | None = None) -> None:
        super().__init__(message)
        self.smallest = smallest

    def __reduce__(self) -> tuple[Any, ...]:
        """From workers too: tblib, which Dask uses, calls no ``__init__`` of its own accord."""
        return type(self), (*self.args, self.smallest)


FILL = (
    "The policy is missing='raise'; use missing='mean' to put each feature's mean in their place, "
    "or, of a model without that parameter, fill them before: streampca.HardImpute"
)


RESCALE = "rescale the columns, X / abs(X).max()"


class SourceError(StreamPCAError, OSError):
    """A source is absent, unreadable or incomplete."""


class DamagedSourceError(SourceError):
    """A part of a source is absent, cut off or altered."""


class AbsentChunkError(DamagedSourceError):
    """A chunk is absent, and absent chunks were not declared to be intended."""


class NewerFormatError(SourceError):
    """An intact file has a format that only a newer streampca reads."""


class ChangingSourceError(SourceError):
    """A source changed while it was read."""


class NoAnswerError(SourceError):
    """A source did not respond in time."""


class BusyError(StreamPCAError, RuntimeError):
    """Another process is doing the same work, or was first. Trying again later may help."""


class ClusterError(StreamPCAError, OSError):
    """Workers are absent, do not respond, or cannot be used."""


class MissingDependencyError(StreamPCAError, ImportError):
    """An optional package that this call needs is not installed."""


class OutputError(StreamPCAError, OSError):
    """An output that cannot be written."""


class OccupiedError(InvalidInputError, OutputError):
    """Something is at the place of an output: exit code 73."""


class NotFittedError(StreamPCAError, ValueError, AttributeError):
    """A result of an estimator was requested before ``fit``."""


class DroppedFeaturesWarning(UserWarning):
    """Features without any observation were left out of the fit."""


class EmptySamplesWarning(UserWarning):
    """Samples without any observation were left out of the fit."""


class EmptyDocumentsWarning(UserWarning):
    """Documents have no word that counts: they stay, and no search finds them."""


class DominantFeatureWarning(UserWarning):
    """One unscaled feature holds more than half of the total variance."""


class AccuracyWarning(UserWarning):
    """Components are below the resolution of the arithmetic, or estimates are extrapolations."""


class HeywoodWarning(UserWarning):
    """A factor analysis found a uniqueness at its lower bound: an improper solution."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped before its estimate converged."""


class LocalComponentWarning(UserWarning):
    """One short region of the genome dominates a component."""


class RelatedSamplesWarning(UserWarning):
    """Fitted samples are related, or a few of them make a component of their own."""


class CallCodingWarning(UserWarning):
    """Genotype calls have no heterozygote: inbred lines, or haploids that count twice."""


class NonFounderWarning(UserWarning):
    """Allele frequencies include samples whose parents are in the data too."""


class UncertainKinshipWarning(UserWarning):
    """Kinship was estimated from too few variants to tell relatives from chance."""


class AbsentNamesWarning(UserWarning):
    """Some of the samples, variants or users that were named are not in the data."""


class UnknownChromosomeWarning(UserWarning):
    """Variants on chromosomes of no known code were left out with those that are no autosomes."""


class IncompleteSourceWarning(UserWarning):
    """Part of a source is not read: gaps in numbered files, variants marked to be ignored."""


class UncertainHeaderWarning(UserWarning):
    """The first line of a text may hold names or numbers; the warning says how it was read."""


class RowNumbersWarning(UserWarning):
    """A feature may be the numbers of the rows."""


class StaleMetadataWarning(UserWarning):
    """The consolidated metadata of a Zarr group differ from those of an array in it."""


class StuckWorkerWarning(UserWarning):
    """A worker is paused, silent or stuck: its part of a pass moved to others; or it cannot end."""


class UncountedRowsWarning(UserWarning):
    """A Dask array did not know its chunk sizes, and was computed once more to count its rows."""


class NoWorkerWarning(UserWarning):
    """A pass waits, because no worker of the cluster takes tasks, or its scheduler is gone."""


class LocalSourceWarning(UserWarning):
    """A source that only this process can read was read here instead of on the workers."""


class OtherVersionWarning(UserWarning):
    """A worker that joined the cluster has another version of streampca, and gets no work."""


class MemoryPlanWarning(UserWarning):
    """A fit took more memory than planned within its limit, or a new worker has too little."""


class PreprocessingWarning(UserWarning):
    """New rows have weights of their own, and those of the fit are not known."""


class UnreportedRunWarning(UserWarning):
    """The metrics or the lineage of a run could not be written or delivered."""


class NoGapWarning(UserWarning):
    """``n_components="gap"`` found no gap larger than the sampling error."""


def warn_caller(message: str, kind: type[Warning]) -> None:
    """Warn at the line that called this package, however deep within it the warning arises."""
    level, frame = 2, sys._getframe(1)
    inner = (PACKAGE, contextlib.__file__)  # of decorators that are context managers
    while frame.f_code.co_filename.startswith(inner) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(printable_name(message), kind, stacklevel=level)


def not_fitted(name: str) -> Exception:
    """The error for an unfitted estimator; also scikit-learn's own error, if that is loaded."""
    kind: type[NotFittedError] = _also_of_scikit_learn(NotFittedError)
    return kind(f"This {name} instance is not fitted yet. Call 'fit' before using this method.")


def convergence_warning() -> type[ConvergenceWarning]:
    """The category; also scikit-learn's own, if that is loaded."""
    kind: type[ConvergenceWarning] = _also_of_scikit_learn(ConvergenceWarning)
    return kind


def _also_of_scikit_learn(kind: Any) -> Any:
    if "sklearn" not in sys.modules:
        return kind
    import sklearn.exceptions

    return _joined(kind, getattr(sklearn.exceptions, kind.__name__))


@cache
def _joined(kind: Any, theirs: Any) -> Any:
    return type(kind.__name__, (kind, theirs), {})


def shorten(names: list[str], total: int | None = None) -> str:
    """``a; b; c; d and 12 more``: the first of ``total`` names, for a message."""
    total = len(names) if total is None else total
    shown = "; ".join(map(printable_name, names[:4]))
    return shown if total <= 4 else f"{shown} and {total - 4} more"


def nearest(name: object, known: Iterable[str]) -> str:
    """``; did you mean n_components?`` if a known name is similar, else ""."""
    names = {one.lower(): one for one in known}
    found = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"; did you mean {names[found[0]]}?" if found else ""


# How a command ends: exit codes as in sysexits.h (65 unusable data or settings, 66 no such input,
# 69 not enough memory, a missing package or no workers, 70 a bug of streampca, 73 an output cannot
# be written, 74 reading or writing failed, 75 another process was first: try again later, 78 an
# unusable job file), 2 for words that the command does not take, and 79 for a job that lags behind
# its source, with --fail-behind; and the kind of the error, which programs may rely on.
USAGE, NO_MEMORY, FAULT, FAILED, STOPPED = 2, 69, 70, 74, 130
TERMINATED = 143  # 128 + SIGTERM
OF_USAGE = "usage"  # the kind of an error of the command line's own words
EXIT: tuple[tuple[type[BaseException], int, str], ...] = (
    (OccupiedError, 73, "occupied"),
    (OutputError, 73, "output"),
    (ConfigError, 78, "config"),
    (BusyError, 75, "busy"),
    (ChangingSourceError, 75, "changing_source"),
    (AbsentChunkError, 65, "absent_chunk"),
    (DamagedSourceError, 65, "damaged_source"),
    (MemoryLimitError, NO_MEMORY, "memory_limit"),
    (ClusterError, 69, "cluster"),
    (NoAnswerError, FAILED, "no_answer"),
    (NewerFormatError, 66, "newer_format"),
    (SourceError, 66, "source"),
    (MissingDependencyError, 69, "missing_dependency"),
    (NonFiniteError, 65, "non_finite"),
    (InvalidTypeError, 65, "invalid_type"),
    (InvalidInputError, 65, "invalid_input"),
    (NotFittedError, 65, "not_fitted"),
    (StreamPCAError, 65, "streampca"),
    (KeyboardInterrupt, STOPPED, "interrupted"),
    (SystemExit, TERMINATED, "terminated"),
    (OSError, FAILED, "system"),
    (MemoryError, NO_MEMORY, "memory"),
    (BaseException, FAULT, "fault"),
)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ends with this error."""
    return next(code for kind, code, _ in EXIT if isinstance(error, kind))


def error_kind(error: BaseException) -> str:
    """The kind of an error in JSON, logs and notes: a word that stays the same."""
    return next(word for kind, _, word in EXIT if isinstance(error, kind))
