"""Every notebook runs from its first cell to its last, and warns of nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("**/*.ipynb"))


@pytest.fixture
def _own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel ``python3`` of this interpreter that sees this source tree and no user settings."""
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # else jupyter_core warns of its old paths
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # the debugger of frozen modules
    monkeypatch.delenv("MPLBACKEND", raising=False)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *([path] if path else [])]))
    from ipykernel.kernelspec import write_kernel_spec

    (tmp_path / "jupyter" / "kernels").mkdir(parents=True)
    write_kernel_spec(str(tmp_path / "jupyter" / "kernels" / "python3"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.usefixtures("_own_kernel")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient

    assert KernelSpecManager().get_kernel_spec("python3").argv[0] == sys.executable

    notebook = nbformat.read(path, as_version=4)
    there = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources=there)
    client.execute()
    complaints = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert complaints == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_stored_clean(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
