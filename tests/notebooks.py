"""The guides, run and stored: ``python -m tests.notebooks`` (``--write`` stores what they print).

    python -m tests.notebooks                      # run all, compare with what is stored
    python -m tests.notebooks 06-text              # one of them
    python -m tests.notebooks --write 06-text      # run it and store its outputs

A guide runs in an empty folder, which is its working directory and its place for temporary files;
the name of that folder is taken out of the stored outputs. Two runs agree where the words of their
outputs are equal and the numbers agree (:func:`differences`), and where one draws a picture so does
the other. The output of a cell with the tag ``varies`` (times, memory, dates) is not compared.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import html
import io
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
LARGEST, LARGEST_OF_ALL = 400_000, 5_000_000  # bytes of a guide, and of all
VARIES = "varies"
OF_USERS = {"MPLBACKEND", "JESTER5K"}  # a backend draws elsewhere; a guide takes real data by it
RELATIVE, ROUNDING = 1e-3, 1e-6  # how far numbers may differ, and what is only rounding
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?", re.I)
HIDDEN = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.S)


def kernel_environment(folder: Path) -> dict[str, str]:
    """Variables under which ``python3`` is a kernel of this interpreter that sees this source tree
    and no settings of the user; the kernel is written to ``folder``."""
    from ipykernel.kernelspec import write_kernel_spec

    kernel = folder / "jupyter" / "kernels" / "python3"
    kernel.parent.mkdir(parents=True)
    write_kernel_spec(str(kernel))
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JUPYTER_PLATFORM_DIRS": "1",  # else jupyter_core warns of its old paths
        "JUPYTER_PATH": str(folder / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # the debugger of frozen modules
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "2",  # plans say how many threads there are
    }


def run(path: Path, workspace: Path) -> Any:
    """The notebook with the outputs of a run in ``workspace``; the kernel ``python3`` is ours."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    there = {"metadata": {"path": str(workspace)}}
    env = {name: value for name, value in os.environ.items() if name not in OF_USERS}
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=there, record_timing=False
    ).execute(env={**env, "TMPDIR": str(workspace)})
    notebook.metadata.language_info = {"name": "python"}
    for cell in code_cells(notebook):  # a bar of progress is there if a fit happens to be slow
        cell.outputs = [out for out in cell.outputs if not is_progress(out)]
    for output in outputs(notebook):
        for holder, name in texts_of(output):
            holder[name] = without_folder(holder[name], workspace)
        if "image/png" in output.get("data", {}):
            output.data["image/png"] = smaller(output.data["image/png"])
    return notebook


def smaller(picture: str) -> str:
    """A PNG in base64 with a palette of 256 colours: a third of its size, ends of scales kept."""
    from PIL import Image

    packed = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        whole, spread = image.convert("RGB"), Image.Quantize.MAXCOVERAGE
        whole.quantize(256, spread, dither=Image.Dither.NONE).save(packed, "png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def is_progress(output: Any) -> bool:
    return bool(output.get("data", {}).get("text/html", "").startswith("<progress "))


def without_folder(text: str, workspace: Path) -> str:
    """Paths begin within the folder of the run, also those of folders that the guide made there;
    who ran it, and on which machine, is left out."""
    text = text.replace(f"{getpass.getuser()}@{socket.gethostname()}", "you@here")
    return re.sub(re.escape(str(workspace)) + r"/?(tmp\w{8}/?)?", "", text)


def outputs(notebook: Any) -> Iterator[Any]:
    """Every output of every code cell."""
    for cell in notebook.cells:
        yield from cell.get("outputs", ())


def texts_of(output: Any) -> Iterator[tuple[Any, str]]:
    """Where an output holds text: the dictionary and the key."""
    if output.output_type == "stream":
        yield output, "text"
    for kind in ("text/plain", "text/html"):
        if kind in output.get("data", {}):
            yield output.data, kind


def complaints(notebook: Any) -> list[str]:
    """What a run wrote to stderr: warnings of all kinds."""
    return [out.text for out in outputs(notebook) if out.get("name") == "stderr"]


def differences(stored: Any, fresh: Any) -> list[str]:
    """One line for every cell whose stored outputs are not those of the run."""
    found = []
    code = zip(code_cells(stored), code_cells(fresh), strict=True)
    for number, (old, new) in enumerate(code, 1):
        varies = VARIES in old.metadata.get("tags", ())
        reason = disagreement(shown(old, varies), shown(new, varies))
        found += [f"cell {number}: {reason}"] if reason else []
    return found


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any, varies: bool) -> tuple[set[str], str]:
    """The kinds of what a cell shows, and its text as a reader sees it."""
    kinds, text = set(), []
    for output in cell.outputs:
        kinds |= {output.output_type, *output.get("data", {})}
        text += [holder[name] for holder, name in texts_of(output)]
    visible = html.unescape(HIDDEN.sub(" ", " ".join(text)))
    return kinds, "" if varies else " ".join(visible.split())


def disagreement(old: tuple[set[str], str], new: tuple[set[str], str]) -> str:
    """Why two outputs are not the same, or nothing."""
    if old[0] != new[0]:
        return f"stored are {sorted(old[0]) or 'no outputs'}, the run made {sorted(new[0])}"
    words, numbers = zip(*(read(text) for _, text in (old, new)), strict=True)
    if words[0] != words[1]:
        return f"stored is {old[1][:300]!r}, the run made {new[1][:300]!r}"
    apart = [f"{a} is now {b}" for a, b in zip(*numbers, strict=True) if not same_number(a, b)]
    return ", ".join(apart[:5])


def read(text: str) -> tuple[list[str], list[str]]:
    """The words of a text, with a sign in place of each number, and the numbers."""
    return NUMBER.sub("#", text).split(), NUMBER.findall(text)


def same_number(a: str, b: str) -> bool:
    """Equal to 0.1 % or to the last digit that is printed; what is below 1e-6 is rounding. Whole
    numbers are counts, and equal."""
    x, y = (float(one.replace(",", "").replace("−", "-")) for one in (a, b))
    digits = [last_digit(one) for one in (a, b)]
    if not any(digits):
        return x == y
    return abs(x - y) <= max(RELATIVE * abs(x), ROUNDING, 1.01 * max(digits))


def last_digit(number: str) -> float:
    """The value of one unit of the last printed decimal: 0 of a whole number, also of ``3.``."""
    mantissa, _, exponent = number.lower().partition("e")
    decimals = mantissa.partition(".")[2]
    return 10.0 ** (int(exponent or 0) - len(decimals)) if decimals or exponent else 0.0


@contextmanager
def workspace() -> Iterator[Path]:
    """An empty folder whose path has the same length in every run: tables are as wide as paths."""
    with tempfile.TemporaryDirectory(prefix="guide-") as folder:
        yield Path(folder)


def main() -> int:
    """Run the guides; store their outputs, or say where they differ from what is stored."""
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="stems such as 06-text; all without any")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(kernel_environment(Path(folder)))
        wrong = 0
        for path in [FOLDER / f"{name}.ipynb" for name in arguments.names] or PATHS:
            begun = time.perf_counter()
            with workspace() as empty:
                fresh = run(path, empty)
            found = [f"stderr: {text}" for text in complaints(fresh)]
            if arguments.write and not found:
                nbformat.write(fresh, path)
            else:
                found += differences(nbformat.read(path, as_version=4), fresh)
            seconds, size = time.perf_counter() - begun, path.stat().st_size / 1000
            print(f"{path.stem}: {seconds:.1f} s, {size:.0f} kB", *found, sep="\n  ")
            wrong += bool(found)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
