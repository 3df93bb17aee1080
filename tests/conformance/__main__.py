"""Known answers: how near the components of any implementation are to the true ones.

    python -m tests.conformance --ours
    python -m tests.conformance --fit package.module:function

prints, for each of some fifty matrices whose singular values and vectors are known to 50 digits, the
error of the values (relative to the largest), the largest angle of a direction that the data
determine, how far the vectors are from orthonormal, and a verdict:

- ``pass``: as near as a backward stable algorithm (:mod:`tests.conformance.judge` has the bound);
- ``limit``: further away, and the fit said so, by a bound that holds or by a warning;
- ``refuses``: it raised an error;
- ``wrong``: further away, and nothing said so, or beyond the bound that it gave.

``function(X, k)`` gets a NumPy matrix (n, p), samples in rows, and returns ``(values, vectors)``:
the k leading singular values of the matrix whose column means are subtracted, and its right
singular vectors in the rows of a (k, p) array, with any signs. For a truncated SVD, which subtracts
no means, say ``--as-it-is``. It may return ``(values, vectors, bounds)`` if it knows how far it may
be off: ``bounds`` holds k errors of values and k angles. ``--case`` picks matrices by a part of their name,
``--details`` prints a line for each of them where several fits run.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.fits import OURS, PEERS, Fit
from tests.conformance.judge import Errors, Truth, Verdict, judged, matrix_of, tolerance
from tests.conformance.matrices import CASES

QUIET = (DeprecationWarning, FutureWarning, PendingDeprecationWarning, ResourceWarning, ImportWarning)


def tried(fit: Fit, name: str) -> tuple[Verdict, Errors | None]:
    """What a fit makes of a case."""
    x, k = matrix_of(name), CASES[name].k
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="warn"):
        warnings.simplefilter("always")
        try:
            answer = fit.fit(x, k)
        except Exception as error:  # whatever a peer raises
            return Verdict("refuses", f"{type(error).__name__}: {error}"), None
    told = [str(one.message) for one in warned if not issubclass(one.category, QUIET)]
    return judged(answer, told, Truth.of(name, fit.centred), k, tolerance(x))


def line(name: str, verdict: Verdict, errors: Errors | None) -> str:
    """A row of what is printed."""
    numbers = " " * 27
    if errors is not None:
        known = errors.angles[errors.allowed < 1]
        numbers = f"{errors.values.max(initial=0):9.1e}{known.max(initial=0):9.1e}{errors.turned:9.1e}"
    return f"{name:22}{numbers}  {verdict.word:8} {verdict.why[:150]}"


def named(text: str) -> Any:
    """``package.module:function``."""
    module, _, function = text.partition(":")
    return getattr(importlib.import_module(module), function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fit", type=named, metavar="MODULE:FUNCTION")
    parser.add_argument("--as-it-is", action="store_true", help="it subtracts no means")
    parser.add_argument("--ours", nargs="?", const="", metavar="PART OF A NAME")
    parser.add_argument("--peers", nargs="?", const="", metavar="PART OF A NAME")
    parser.add_argument("--case", default="", metavar="PART OF A NAME")
    chosen = parser.parse_args()
    fits = {}
    for known, part in ((OURS, chosen.ours), (PEERS, chosen.peers)):
        fits |= {name: fit for name, fit in known.items() if part is not None and part in name}
    if chosen.fit is not None:
        fits["your fit"] = Fit(chosen.fit, not chosen.as_it_is)
    for title, fit in fits.items():
        print(f"{title}\n{'':22}{'values':>9}{'angle':>9}{'V V - I':>9}")
        for name in CASES:
            if chosen.case in name:
                print(line(name, *tried(fit, name)), flush=True)


if __name__ == "__main__":
    main()
