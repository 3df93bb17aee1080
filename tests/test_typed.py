"""Users' code under mypy --strict: parameters, results and pictures have types."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.slow
def test_what_users_write_has_types(tmp_path: Path) -> None:
    from mypy import api

    written = str(Path(__file__).with_name("typed_use.py"))
    root = Path(__file__).parents[1]
    said, errors, code = api.run(
        ["--strict", "--config-file", str(root / "pyproject.toml"), "--follow-imports=silent",
         f"--cache-dir={tmp_path}", "--explicit-package-bases", written]
    )  # fmt: skip
    assert (code, errors) == (0, ""), said
