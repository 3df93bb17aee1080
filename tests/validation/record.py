"""What was compared, kept with its day and versions, and the table that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("recorded.json")
GROUPS = {  # in the order of the page
    "Published numbers": ("published",),
    "R": ("R",),
    "PLINK 2 and EIGENSOFT": ("plink2", "smartpca"),
    "eofs and xeofs": ("eofs", "xeofs"),
    "Python packages": ("scikit-learn", "scipy", "scanpy", "gensim", "scikit-surprise"),
}
HEAD = ("data", "streampca", "reference", "compared", "largest difference", "run")


def recorded() -> list[dict[str, Any]]:
    """One dictionary for each comparison."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def keep(rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def tables(_: str) -> str:
    """A heading and a table for each group of tools."""
    parts = []
    for name, tools in GROUPS.items():
        rows = [row for row in recorded() if row["tool"].split()[0] in tools]
        lines = [HEAD, ("---",) * len(HEAD), *map(cells, rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"### {name}\n\n{table}")
    return "\n\n".join(parts)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Where a difference is more than rounding, the reason stands beside it."""
    difference = f"{row['difference']:.0e}".replace("e-0", "e-") if row["difference"] else "0"
    if row["why"]:
        difference += f": {row['why']}"
    reference, versions = row["reference"], row["versions"]
    if row["tool"] != "published":
        tool, versions = versions.split(", ", 1)
        reference = f"{tool}: `{reference}`"
    run = f"{row['date']}, {versions}, {row['commit']}"
    return row["data"], f"`{row['ours']}`", reference, row["compared"], difference, run
