"""Every guide runs from its first cell to its last, warns of nothing, and shows what is stored."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked_kernel, notebooks

INDEX = (notebooks.FOLDER / "README.md").read_text()
each = pytest.mark.parametrize("path", notebooks.PATHS, ids=lambda path: path.stem)
# The longest; ``python -m tests.notebooks`` runs all.
BY_HAND = (
    "04-single-cell",
    "07-faces",
    "08-kernels-and-two-views",
    "09-cluster-and-memory",
    "13-cmip",
)


@pytest.fixture(scope="module")
def fork_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a process that kernels are forked from."""
    place = tmp_path_factory.mktemp("kernels") / "socket"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in notebooks.kernel_environment(place.parent).items():
            patch.setenv(name, value)
        command = [sys.executable, "-m", "tests.forked_kernel", str(place)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=notebooks.ROOT)
    while not place.exists():
        assert process.poll() is None
        time.sleep(0.05)
    yield place
    process.communicate()


@pytest.fixture
def guide_kernel(own_kernel: None, fork_place: Path, path: Path) -> None:
    """The first guide has a kernel as a reader's, the others have forks of one process."""
    if path != notebooks.PATHS[0]:
        file = Path(os.environ["JUPYTER_PATH"], "kernels", "python3", "kernel.json")
        known = json.loads(file.read_text())
        asking = [sys.executable, "-IS", forked_kernel.__file__, str(fork_place)]
        file.write_text(json.dumps(known | {"argv": [*asking, "-f", "{connection_file}"]}))


@pytest.mark.usefixtures("guide_kernel")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=path.stem, marks=pytest.mark.soak if path.stem in BY_HAND else pytest.mark.slow
        )
        for path in notebooks.PATHS
    ],
)
def test_a_guide_runs_and_shows_its_stored_outputs(path: Path) -> None:
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager

    assert KernelSpecManager().get_kernel_spec("python3").argv[0] == sys.executable
    with notebooks.workspace() as empty:
        fresh = notebooks.run(path, empty)
    assert notebooks.complaints(fresh) == []
    assert notebooks.differences(nbformat.read(path, as_version=4), fresh) == []


@each
def test_a_guide_is_stored_with_its_outputs(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    counts = [cell.execution_count for cell in notebooks.code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1)), (
        f"python -m tests.notebooks --write {path.stem}"
    )
    kinds = {kind for output in notebooks.outputs(notebook) for kind in output.get("data", ())}
    assert "image/png" in kinds
    assert not {output.output_type for output in notebooks.outputs(notebook)} & {"error"}
    assert notebooks.complaints(notebook) == []
    assert path.stat().st_size < notebooks.LARGEST


@each
def test_a_guide_begins_with_a_question_and_ends_with_an_exercise(path: Path) -> None:
    import nbformat

    text = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown"]
    assert text[0].startswith("# ")
    assert "?" in text[0]
    assert "exercise" in text[-1].lower()


def test_the_index_has_every_guide() -> None:
    assert notebooks.PATHS
    assert sorted(re.findall(r"\]\(([\w-]+\.ipynb)\)", INDEX)) == [p.name for p in notebooks.PATHS]


def test_all_guides_take_five_megabytes_at_most() -> None:
    assert sum(path.stat().st_size for path in notebooks.PATHS) < notebooks.LARGEST_OF_ALL


@pytest.mark.parametrize(
    ("stored", "fresh", "same"),
    [
        ("0.904", "0.905", True),  # the last digit
        ("0.904", "0.907", False),
        ("20,000 rows", "20,001 rows", False),  # counts are exact
        ("[3. 4.]", "[3. 5.]", False),
        ("1.", "0.9999", True),
        ("3.1e-16", "2e-15", True),  # rounding
        ("2e-5", "4e-5", False),
        ("-1.20", "1.20", False),
        ("1.5 heat", "1.5 load", False),
        ("a    1.0\nb    2.0", "a 1.0\nb 2.0", True),
        ("<td>1.0</td>", "1.0", True),
        ("<style>p {x: 1}</style>1.0", "1.0", True),
        ("x2", "x3", False),  # a name, no number
    ],
)
def test_outputs_are_equal_within_rounding(stored: str, fresh: str, same: bool) -> None:
    cells = [notebook_of(stream(text)) for text in (stored, fresh)]
    assert (notebooks.differences(*cells) == []) == same


def test_a_picture_that_is_not_there_is_a_difference() -> None:
    import nbformat.v4 as v4

    drawn = notebook_of(v4.new_output("display_data", {"image/png": "AAAA"}))
    bare = notebook_of()
    assert "image/png" in notebooks.differences(drawn, bare)[0]
    assert "no outputs" in notebooks.differences(bare, drawn)[0]


def test_outputs_that_vary_need_only_be_there() -> None:
    now, then = notebook_of(stream("3 s")), notebook_of(stream("4 s"))
    now.cells[0].metadata.tags = then.cells[0].metadata.tags = ["varies"]
    assert notebooks.differences(now, then) == []
    empty = copy.deepcopy(then)
    empty.cells[0].outputs = []
    assert notebooks.differences(now, empty)


def test_the_folder_of_a_run_is_not_stored(tmp_path: Path) -> None:
    run = tmp_path
    said = f"{run}/x.zarr and {run}/tmpab_12345/y.zarr in {run}"
    assert notebooks.without_folder(said, run) == "x.zarr and y.zarr in "


def stream(text: str):
    import nbformat.v4 as v4

    return v4.new_output("stream", name="stdout", text=text)


def notebook_of(*outputs):
    import nbformat.v4 as v4

    return v4.new_notebook(cells=[v4.new_code_cell("1", outputs=list(outputs))])
