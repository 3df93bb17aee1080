"""F26: saved models, stores, logs and job files by somebody who means harm, or merely odd ones.

Each ends in the exit table: no traceback, no read outside of the store, bounded memory, no waiting.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mutations import Case, Places, make_case, make_places

from streampca.cli import main
from streampca.cli.commands import build_parser
from streampca.passes.memory import resident_nbytes

TABLE = {0, 65, 66, 69, 73, 74, 75, 78}
cli_main = sys.modules["streampca.cli.commands"]
SECONDS = 60  # for one case; the time-out of a read is longer
MOST_NBYTES = 256 << 20
WATCHED: list[str] = []  # paths that were opened, while a case runs
watching = False


class HungError(BaseException):
    """No command may take so long. Nothing between here and there catches it."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watching and event == "open" and isinstance(arguments[0], (str, bytes)):
        WATCHED.append(os.path.abspath(os.fsdecode(arguments[0])))


sys.addaudithook(_watch)  # there is no way to take one off


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return make_places(tmp_path_factory.mktemp("places"))


@pytest.fixture
def in_time() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def commands(case: Case, seed: int) -> list[list[str]]:
    """What is asked of it."""
    place = str(case.path)
    if case.kind == "job":
        return [["config", "check", place]]
    if case.kind == "model":
        return [["info", place]]
    more = (
        ["verify"],
        ["show"],
        ["show", "1"],
        ["rollback"],
        ["gc", "--keep", "1"],
        ["verify", "--mend"],
        ["diff", "1", "2"],
        ["promote", "1"],
        ["export", "--scores", str(case.path.parent / "scores.zarr")],
    )[seed % 9]
    return [["models", "list", place], ["models", more[0], place, *more[1:]], ["info", place]]


def run_cases(numbers: range, places: Places, root: Path, capsys: Any) -> list[str]:
    """What was wrong with which of them."""
    global watching
    allowed = (
        str(root),
        sys.prefix,
        sys.base_prefix,
        str(Path(__file__).parents[2]),
        "/proc",
        "/sys",
    )
    wrong = []
    made = build_parser()  # once: it takes longer than what most cases do
    for seed in numbers:
        folder = root / "case"
        folder.mkdir()
        case = make_case(seed, places, folder)
        for words in commands(case, seed):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = resident_nbytes()
            WATCHED.clear()
            watching = True
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
                    warnings.simplefilter("ignore")
                    if case.kind != "job":  # which leaves defaults in it
                        patch.setattr(cli_main, "build_parser", lambda argv: made)
                    code: Any = main(words)
            except HungError:
                code = "hung"
            except BaseException as error:
                code = repr(error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                watching = False
            said = capsys.readouterr()
            grown = peak_nbytes() - before
            outside = [one for one in WATCHED if not one.startswith(allowed)]
            escape = any(ord(c) < 32 and c not in "\n\t" for c in said.out + said.err)
            if code not in TABLE or outside or grown > MOST_NBYTES or escape:
                wrong.append(
                    f"{seed} {case.done} {words[:2]}: {code} {outside} {grown} "
                    f"{escape} {said.err[-200:]!r}"
                )
        shutil.rmtree(folder)
    return wrong


def peak_nbytes() -> int:
    """Resident memory at its highest since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("first", range(0, 90, 30))
def test_altered_files_end_in_the_exit_table(
    first: int, places: Places, tmp_path: Path, capsys: Any
) -> None:
    assert run_cases(range(first, first + 30), places, tmp_path, capsys) == []


@pytest.mark.soak
@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("first", range(0, 20_000, 500))
def test_twenty_thousand_of_them(first: int, places: Places, tmp_path: Path, capsys: Any) -> None:
    assert run_cases(range(first, first + 500), places, tmp_path, capsys) == []
