"""``python -m tests.validation [NAME ...] [--write]``: compare with the tools that are installed.

Each comparison is printed with its largest difference, relative to the largest number compared.
``--write`` keeps what was run now in ``recorded.json``, and makes the page; rows of tools that are
not here stay as they were. Real data are read from ``../shared/data``. To have them all:
``pip install -e '.[bench,netcdf,tables,images]' scikit-surprise``, and R, plink2 and eigensoft.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tests import evidence
from tests.benchmarks.measure import said
from tests.validation import COMPARISONS
from tests.validation.comparing import DATA, installed, with_versions
from tests.validation.record import FILE, keep, recorded


def row(name: str, difference: float) -> dict[str, Any]:
    made = COMPARISONS[name]
    changed = said("git", "status", "--porcelain", "--", "streampca", "tests/validation/*.py")
    return {
        "name": name,
        "tool": made.tool,
        "data": made.data,
        "ours": made.ours,
        "reference": made.reference,
        "compared": made.compared,
        "difference": float(f"{difference:.1e}"),
        "why": made.why,
        "versions": with_versions(made.tool),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": said("git", "rev-parse", "--short", "HEAD") + " and changes" * bool(changed),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone")
    parser.add_argument("--write", action="store_true", help="keep what was found, make the page")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - COMPARISONS.keys():
        parser.error(
            f"no such comparison: {', '.join(unknown)}; there are {', '.join(COMPARISONS)}"
        )
    rows = {one["name"]: one for one in recorded()} if FILE.exists() else {}
    failed = 0
    for name in chosen.names or COMPARISONS:
        made = COMPARISONS[name]
        if installed(made.tool) is None:
            print(f"{name:24} not run: {made.tool} is not installed")
            continue
        difference = made.difference(DATA)
        wrong = difference > made.within
        failed += wrong
        print(f"{name:24} {difference:8.1e}{f', more than {made.within:g}' * wrong}")
        rows |= {} if wrong else {name: row(name, difference)}
    if chosen.write:
        keep([rows[name] for name in COMPARISONS if name in rows])
        evidence.write_pages()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
