"""Other libraries' own tests of their classes, with ours in their place.

``python -m tests.benchmarks.drop_in [pca incremental svd factor] [xeofs=FOLDER]``

The files of tests are those of the scikit-learn that is installed (sklearn/decomposition/tests),
and those of xeofs in FOLDER, its unpacked sources (``pip download --no-binary xeofs xeofs``).
Prints how many pass, and every failure that is left with its class; ends with 1 where fewer pass
than are promised, or a failure has no class.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

OF_SCIKIT_LEARN = """\
import sklearn.decomposition
import streampca
from sklearn.conftest import *

for name in ("PCA", "IncrementalPCA", "TruncatedSVD", "FactorAnalysis"):
    setattr(sklearn.decomposition, name, getattr(streampca, name))
"""
OF_XEOFS = """\
import importlib.util
import xeofs.single

spec = importlib.util.spec_from_file_location("adapter", {adapter!r})
adapter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adapter)
xeofs.single.EOF = adapter.EOF
"""
ACCEPTED = "what scikit-learn refuses works here"
CLASSES = {  # of failures, by the beginning of the name of their test
    r"test_pca_svd_solver_auto": "a private attribute, _fit_svd_solver",
    r"test_pca_validation\[auto-3": "text of an error: it does not name a solver",
    r"test_n_components_mle_error\[randomized": "text of an error",
    r"test_fit_mle_too_few_samples": "text of an error",
    r"test_incremental_pca_validation": "text of an error",
    r"test_pca_validation\[arpack": f"{ACCEPTED}: arpack gives all components",
    r"test_n_components_none\[.*arpack": f"{ACCEPTED}: arpack gives all components",
    r"test_too_many_components\[arpack-55": f"{ACCEPTED}: arpack gives all components",
    r"test_n_components_mle_error\[arpack": f"{ACCEPTED}: 'mle' with arpack",
    r"test_sparse_pca_solver_error": f"{ACCEPTED}: sparse data with every solver",
    r"test_incremental_pca_sparse": f"{ACCEPTED}: partial_fit of sparse data",
    r"test_incremental_pca_set_params": f"{ACCEPTED}: another n_components between batches",
    r"test_pca_score\[": "the likelihood is that of the model, whitened or not",
    r"test_pca_dtype_preservation": "components of float32 data are float64; scores are float32",
    r"test_pca_n_components_mostly_explained": "a share is reached where the sum is equal to it",
    r"test_incremental_pca_partial_fit_float_division": "what a fit has found cannot be assigned",
    r"test_transform_nan_feature": "holes of new rows are refused, or scored, but do not spread",
    r"test_pca_zero_noise_variance": "a likelihood without noise variance is refused",
    r"test_complex_input": "complex data are refused",
}


@dataclass(frozen=True)
class Suite:
    """One file of tests.  least : of them that pass.  of : that run."""

    file: str
    least: int
    of: int

    def laid_out(self, folder: Path, sources: str) -> None:
        """Copy the tests into a folder, beside what puts our classes in place.

        sources : of the other library, or "" for the one that is installed.
        """
        if sources:
            shutil.copytree(Path(sources) / "tests", folder / "tests")
            adapter = str(Path(__file__).with_name("xeofs_eof.py"))
            (folder / "conftest.py").write_text(OF_XEOFS.format(adapter=adapter))
        else:
            import sklearn.decomposition

            tests = Path(sklearn.decomposition.__file__).parent / "tests"
            shutil.copy(tests / self.file, folder)
            (folder / "conftest.py").write_text(OF_SCIKIT_LEARN)
        (folder / "pytest.ini").touch()


SUITES = {
    "pca": Suite("test_pca.py", 349, 386),
    "incremental": Suite("test_incremental_pca.py", 18, 27),
    "svd": Suite("test_truncated_svd.py", 40, 46),
    "factor": Suite("test_factor_analysis.py", 1, 1),
}
XEOFS = Suite("tests/models/single/test_eof.py", 56, 72)  # by the adapter xeofs_eof.py


@dataclass
class Outcome:
    """What a suite gave.  failed : (name, class or "", first line of the error) of each."""

    passed: int = 0
    failed: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: int = 0

    @property
    def ran(self) -> int:
        return self.passed + len(self.failed)

    def promised(self, suite: Suite) -> bool:
        """Whether no more fail than is known, and every failure has its class."""
        known = all(why for _, why, _ in self.failed)
        return known and self.passed > 0 and len(self.failed) <= suite.of - suite.least


def class_of(name: str) -> str:
    """Of a failed test; "" where none is known."""
    return next((why for test, why in CLASSES.items() if re.match(test, name)), "")


def outcomes(suites: list[Suite], sources: str = "", chosen: str = "") -> list[Outcome]:
    """Run the tests of suites in one process.  chosen : of them, as for ``pytest -k``."""
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        for suite in suites:
            suite.laid_out(made, sources)
        quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
        files = [suite.file for suite in suites]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", *quiet),
                *("--junitxml=report.xml", "-k", chosen, *files),
            ],
            cwd=made,
            env=os.environ | {"PYTHONPATH": root},
            capture_output=True,
            text=True,
        )
        report = made / "report.xml"
        if not report.is_file():
            raise RuntimeError(done.stdout + done.stderr)
        return read_report(report, suites)


def read_report(path: Path, suites: list[Suite]) -> list[Outcome]:
    """What a JUnit file of pytest says of each file of tests."""
    found = {Path(suite.file).stem: Outcome() for suite in suites}
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name, module = str(case.get("name")), str(case.get("classname")).split(".")
        of_suite = next(one for stem, one in found.items() if stem in module)
        broken = next((one for one in case if one.tag in ("failure", "error")), None)
        if broken is not None:
            message = str(broken.get("message")).splitlines()[0]
            of_suite.failed.append((name, class_of(name), message))
        elif any(one.tag == "skipped" for one in case):
            of_suite.skipped += 1
        else:
            of_suite.passed += 1
    return [*found.values()]


def suite_name(word: str) -> str:
    """A name of ``SUITES``, or xeofs= and the folder of its sources."""
    if word in SUITES or word.startswith("xeofs="):
        return word
    raise argparse.ArgumentTypeError(
        f"invalid choice: {word!r} (one of {', '.join(SUITES)}, or xeofs=FOLDER)"
    )


def main() -> int:
    """Print what each suite gave; 1 where it is less than was promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", type=suite_name, metavar="NAME")
    wrong = 0
    for name in parser.parse_args().names or SUITES:
        xeofs, _, sources = name.partition("xeofs=")
        suite = XEOFS if sources else SUITES[xeofs]
        (found,) = outcomes([suite], sources)
        print(
            f"{Path(suite.file).name}: {found.passed} of {found.ran} pass (promised: "
            f"{suite.least} of {suite.of}); {found.skipped} are skipped"
        )
        for test, why, message in found.failed:
            print(f"  {test}: {why or 'NO CLASS: ' + message:.200}")
        wrong += not found.promised(suite)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
