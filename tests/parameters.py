"""The parameters of all classes as a page: ``python -m tests.parameters`` writes it.

A parameter with other defaults in other classes stands in several lines, one for each default.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import streampca
from streampca.models.contract.parameters import RunningParameters
from streampca.models.contract.registry import all_kinds

PAGE = Path(streampca.__file__).with_name("PARAMETERS.md")
HEAD = """# Parameters by class

Made by `python -m tests.parameters`. Every class has those of its passes:
{running}.

| parameter | default | classes |
|---|---|---|
"""


def page() -> str:
    """The text of the page."""
    running = RunningParameters.parameters
    classes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, cls in sorted(all_kinds().items()):
        if not cls.__module__.startswith("streampca."):
            continue
        for name, one in cls.parameters.items():
            if name not in running or one != running[name]:
                classes[name, repr(one.default)].append(kind)
    rows = [
        f"| `{name}` | `{default}` | {', '.join(kinds)} |"
        for (name, default), kinds in sorted(classes.items(), key=lambda item: item[0][0].lower())
    ]
    named = ", ".join(f"`{name}`" for name in running)
    return HEAD.format(running=named) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
