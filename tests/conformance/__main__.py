"""Known answers: how near the components of any implementation are to the true ones.

    python -m tests.conformance --ours --peers
    python -m tests.conformance --fit package.module:function

For each of some fifty matrices whose singular values and vectors are known to 50 digits, this
prints the largest error of a singular value (relative to the first), the largest angle of a
direction that the data determine, how far V V' is from the identity, and a verdict:

- ``pass``: as near as a backward stable algorithm (:mod:`tests.conformance.judge` has the bound);
- ``limit``: further away, and the fit said so, by a bound that holds or by a warning;
- ``refuses``: it raised an error;
- ``wrong``: further away, and nothing said so, or beyond the bound that it gave.

``function(X, k)`` gets a NumPy matrix (n, p), samples in rows, and returns ``(values, vectors)``:
the k leading singular values of the matrix without its column means, and its right singular vectors
in the rows of a (k, p) array, with any signs. For a truncated SVD, which subtracts no means, say
``--as-it-is``. A fit that knows how far it may be off returns ``(values, vectors, bounds)``:
``bounds`` is k errors of values and k angles.

``--ours`` runs streampca's solvers on several kinds of sources, ``--peers`` other packages, where
they are installed. ``--case`` takes matrices by a part of their name. ``--record`` keeps the rows
for the table of the page.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.measure import record, recordable
from tests.conformance.fits import OURS, PEERS, Fit
from tests.conformance.judge import WORDS, Errors, Truth, Verdict, judged, matrix_of, tolerance
from tests.conformance.matrices import CASES

TABLE = Path(__file__).with_name("table.json")
QUIET = (DeprecationWarning, FutureWarning, ResourceWarning, ImportWarning)  # of other things
LONGEST = 100  # letters of an error


def called(fit: Fit, name: str) -> tuple[tuple[Any, ...], set[str]]:
    """What a fit returns for a case, and what it warns of."""
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="warn"):
        warnings.simplefilter("always")
        answer = fit.fit(matrix_of(name), CASES[name].k)
    return answer, {str(one.message) for one in warned if not issubclass(one.category, QUIET)}


def tried(fit: Fit, name: str) -> tuple[Verdict, Errors | None]:
    """What a fit makes of a case. Raises ImportError where its package is not installed.

    What it warns of in any case, the easiest too, says nothing.
    """
    try:
        answer, told = called(fit, name)
    except ImportError:
        raise
    except Exception as error:  # whatever a peer raises
        return Verdict("refuses", f"{type(error).__name__}: {error}"), None
    told = told and told - called(fit, "plain")[1]
    true, x = Truth.of(name, fit.centred), matrix_of(name)
    return judged(answer, told, true, CASES[name].k, tolerance(x, true.largest))


def line(name: str, verdict: Verdict, errors: Errors | None) -> str:
    """A row of what is printed."""
    numbers = " " * 27
    if errors is not None:
        angle = errors.angles[errors.allowed < 1].max(initial=0.0)
        numbers = f"{errors.values.max(initial=0.0):9.0e}{angle:9.0e}{errors.turned:9.0e}"
    return f"{name:22}{numbers}  {verdict.word:8}{verdict.why[:LONGEST]}".rstrip()


def all_cases(title: str, fit: Fit, part: str) -> dict[str, Any] | None:
    """Try a fit, print it, and return the row for the table; None where it is not installed.

    part : of the names of the cases.
    """
    print(f"\n{title}\n{'':22}{'values':>9}{'angle':>9}{'not 1':>9}")
    verdicts = {}
    for name in CASES:
        if part in name:
            try:
                verdict, errors = tried(fit, name)
            except ImportError as error:
                print(f"not installed: {error}")
                return None
            verdicts[name] = verdict
            print(line(name, verdict, errors), flush=True)
    counts = Counter(verdict.word for verdict in verdicts.values())
    print(*(f"{counts[word]} {word}" for word in WORDS), sep=", ")
    other = {
        name: one.word + f" {one.why}" * (one.word in ("limit", "wrong"))
        for name, one in verdicts.items()
        if one.word != "pass"
    }
    return {"name": title, **{word: counts[word] for word in WORDS}, "other": other}


def named(text: str) -> Any:
    """``package.module:function``."""
    module, _, function = text.partition(":")
    return getattr(importlib.import_module(module), function)


def main() -> int:
    """Print the tables. 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--fit", type=named, metavar="MODULE:FUNCTION", help="yours")
    parser.add_argument("--as-it-is", action="store_true", help="it subtracts no means")
    part = {"nargs": "?", "const": "", "metavar": "PART", "help": "all, or those with it"}
    parser.add_argument("--ours", **part)
    parser.add_argument("--peers", **part)
    parser.add_argument("--case", default="", metavar="PART", help="of the names of matrices")
    recordable(parser, str(TABLE))
    chosen = parser.parse_args()
    fits = {}
    for known, part in ((OURS, chosen.ours), (PEERS, chosen.peers)):
        fits |= {name: fit for name, fit in known.items() if part is not None and part in name}
    if chosen.fit is not None:
        fits["your fit"] = Fit(chosen.fit, not chosen.as_it_is)
    rows = [all_cases(title, fit, chosen.case) for title, fit in fits.items()]
    made = [row for row in rows if row is not None]
    record(chosen.record, made, "scikit-learn", "dask-ml", "xeofs", "scanpy")
    return int(any(row["wrong"] for row in made))


if __name__ == "__main__":
    sys.exit(main())
