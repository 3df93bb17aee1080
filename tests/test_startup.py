"""What a fresh process loads and compiles, in place of a clock: see ``benchmarks/startup.py``."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca import PCA, HardImpute, KernelPCA, rotate
from streampca.imported import home_of

PACKAGE = Path(streampca.__file__).parent
SOURCES = (".py", ".pyi", ".md", ".css", ".js", ".typed", "")
NEVER = ("pandas", "xarray", "dask", "distributed", "matplotlib", "bokeh", "sklearn", "numba")
SOLVING = ("scipy.linalg", "scipy.sparse", "scipy.special")  # what only a fit needs
UNUSED = ("scipy.special", "streampca.models.completion")  # by a fit of an array, or of Zarr
AT_ONCE = ("numpy", "scipy", "zarr", *NEVER)  # what neither the import nor --help needs

STEPS = """
import contextlib, io, sys
from pathlib import Path

def loaded(step, names):
    print(step, [one for one in names if one in sys.modules])

import streampca
loaded("import", {at_once})
from streampca.cli.commands import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(["--help"])
loaded("--help", {at_once})
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["info", "x.npy"]) == 0
    assert main(["info", "model"]) == 0
    assert main(["plan", "x.npy"]) == 0
loaded("info", {before_fits})
import numpy as np
streampca.PCA(2, progress=False).fit(np.load("x.npy"))
loaded("fit", {never})
"""

COMPILING = """
import numpy as np
import scipy.sparse
import streampca
from numba.core import event

class Compiled(event.Listener):
    def on_start(self, event):
        print("compiled", event.data["dispatcher"].py_func.__qualname__)

    def on_end(self, event):
        pass

event.register("numba:compile", Compiled())
calls = np.random.default_rng(0).integers(0, 3, (60, 300)).astype("i1")
for one in (calls, np.asfortranarray(calls)):
    streampca.GenotypePCA(2, progress=False).fit(one)
streampca.prune_ld(calls, progress=False)
streampca.PCA(2, progress=False).fit(scipy.sparse.random(200, 50, 0.1, format="csr", rng=0))
"""


def fresh(code: str, folder: Path, **environment: str) -> list[str]:
    """The lines that a fresh process prints; its working directory is the folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_what_is_needed_loads(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 8))
    np.save(tmp_path / "x.npy", x)
    PCA(2, progress=False).fit(x).save(tmp_path / "model")
    never = (*NEVER, *UNUSED)
    code = STEPS.format(at_once=AT_ONCE, before_fits=(*NEVER, *SOLVING), never=never)
    assert fresh(code, tmp_path) == ["import []", "--help []", "info []", "fit []"]


@pytest.mark.soak
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    installed = shutil.copytree(
        PACKAGE, tmp_path / "site/streampca", ignore=shutil.ignore_patterns("__pycache__")
    )
    cache = {
        "PYTHONPATH": str(tmp_path / "site"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "NUMBA_CACHE_DIR": "",
    }
    first = fresh(COMPILING, tmp_path, **cache)
    assert "compiled _count_by_sample" in first
    # the text of an error that no kernel raises, a second for each kernel that assigns arrays
    assert not [line for line in first if "shape_context" in line or "str_generic" in line]
    assert fresh(COMPILING, tmp_path, **cache) == []
    # nothing is written below the package: another installation there would import it
    assert {path.suffix for path in installed.rglob("*") if path.is_file()} <= {*SOURCES, ".pyc"}
    assert list((tmp_path / "cache/streampca").rglob("*.nbc"))


def test_what_was_saved_loads_without_its_class(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 8))
    models: dict[str, Any] = {
        "hard": HardImpute(2, progress=False).fit(np.where(x > 1.5, np.nan, x)),
        "kernel": KernelPCA(2, progress=False).fit(x),
        "rotated": rotate(PCA(2, progress=False).fit(x)),
    }
    for name, model in models.items():
        model.save(tmp_path / name)
    (tmp_path / "pickle").write_bytes(pickle.dumps(models["kernel"]))
    code = f"""
import pickle
from pathlib import Path
print(type(pickle.loads(Path("pickle").read_bytes())).__name__)
import streampca
for one in {[*models]}:
    print(type(streampca.load(one)).__name__, type(streampca.load(one).result_).__name__)
"""
    assert fresh(code, tmp_path) == [
        "KernelPCA",
        *(f"{type(one).__name__} {type(one.result_).__name__}" for one in models.values()),
    ]


@pytest.mark.slow
def test_every_public_name_loads_from_where_type_checkers_see_it() -> None:
    """The imports of the stub are the public names; nothing else lists them."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name: str(node.module) for node in imports for alias in node.names}
    assert all(alias.name == alias.asname for node in imports for alias in node.names)  # exported
    assert {*streampca.__all__} == names.keys() <= {*dir(streampca)}
    assert {"PCA", "load", "plots", "preprocess", "errors", "__version__"} <= names.keys()
    for name, module in names.items():
        found = getattr(streampca, name)
        if module == "streampca":
            assert found is sys.modules[f"streampca.{name}"]
            continue
        assert getattr(sys.modules[module], name) is found
        assert home_of(name) == module
    with pytest.raises(AttributeError, match="has no attribute 'PCAA'"):
        streampca.PCAA  # noqa: B018
