"""Nights of a job on sources of nine layouts whose writers die, return, shrink and begin anew.

After every refresh what is served is compared with NumPy on the rows that the help texts say must
count. ``python -m pytest tests/faults/test_soak_of_nights.py -m soak -n 1`` runs all of it;
``SOAK_SEED`` and ``SOAK_STEPS`` (of a layout) choose other ones. ``python
tests/faults/test_soak_of_nights.py LAYOUT SEED STEPS`` runs one layout and prints what it did.
"""

from __future__ import annotations

import collections
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from nights_files import FileSource, IcechunkSource
from nights_job import Processes, answered, brief, in_this_process
from nights_record import Expected, disagreement
from nights_zarr_steps import ZarrSource

import streampca

LAYOUTS: dict[str, Callable[..., Any]] = {
    "plain-v3": ZarrSource,
    "sharded": ZarrSource,
    "blosc-v2": ZarrSource,
    "group-v2": ZarrSource,
    "group-v3": ZarrSource,
    "icechunk": IcechunkSource,
    "parquet-folder": FileSource,
    "parquet": FileSource,
    "npy": FileSource,
}
SEED = int(os.environ.get("SOAK_SEED", "1"))
STEPS = int(os.environ.get("SOAK_STEPS", "1200"))
RUN = 60  # steps of one source
MODULES = ("zarr", "numcodecs", "xarray", "pyarrow.parquet", "icechunk", "dask.array")


class Wrong(AssertionError):
    """What the help texts exclude."""


class Nights:
    """One source, one job, and everything that happens to them."""

    def __init__(
        self, folder: Path, layout: str, seed: tuple[int, ...], processes: Processes
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.folder, self.processes = folder, processes
        self.source = LAYOUTS[layout](folder, self.rng, layout)
        self.store = folder / "models"
        self.kind = str(self.rng.choice(["IncrementalPCA", "IncrementalPCA", "PCA"]))
        self.scale = bool(self.rng.random() < 0.2)
        self.settle = float(self.rng.choice([0, 60]))
        self.known: dict[int, np.ndarray[Any, Any]] = {}  # the rows of each version
        self.lives: dict[int, int] = {}  # the life of the source that each was made of
        self.served = 0  # its number
        self.rolled_back = False
        self.strange: set[int] = set()  # versions of other features
        self.done: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.write_job()

    # ---- the job ------------------------------------------------------------------------------
    def write_job(self) -> None:
        model = {"kind": self.kind, "n_components": 3} | ({"scale": "std"} if self.scale else {})
        entries = {
            "source": self.source.source,
            "model": model,
            "store": str(self.store),
            "settle": self.settle,
            "keep": 6,
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(entries))

    def run(self, *options: str, **request: Any) -> list[tuple[int, str]]:
        self.write_job()
        job = str(self.folder / "job.yaml")
        if not request.keys() - {"clock"} and self.rng.random() < 0.9:
            return [in_this_process(job, options, **request)]
        return self.processes(job=job, options=list(options), **request)

    def say(self, what: str) -> None:
        self.done.append(what)

    def wrong(self, what: str) -> Wrong:
        about = f"{self.kind}, settle {self.settle}, {vars(self.source)}"
        return Wrong("\n".join([about[:1500], *self.done[-25:], "WRONG: " + what]))

    # ---- steps --------------------------------------------------------------------------------
    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.45:
            self.write()
        elif chance < 0.75:
            self.refresh()
        else:
            names = {
                "killed": 2,
                "race": 1,
                "dry_run": 4,
                "full": 4,
                "fail_behind": 2,
                "clock": 3,
                "age": 6,
                "new_settle": 3,
                "roll_back": 3,
                "listed": 1,
                "promote": 3,
                "read_back": 3,
            }
            likely = np.array([*names.values()]) / sum(names.values())
            getattr(self, str(self.rng.choice([*names], p=likely)))()

    def write(self) -> None:
        name = str(self.rng.choice(self.source.steps))
        self.counts["writer " + name] += 1
        if "repair" not in name and self.source.record.rows > 540:
            name = "shrink"
        if isinstance(self.source, ZarrSource) and not self.source.record.rows:
            name = "anew"
        if name == "other_columns" and not self.known:  # any columns are right then
            name = "grow"
        try:
            said = getattr(self.source, name)()
        except Exception as error:
            raise self.wrong(f"the writer {name}: {error!r}") from error
        self.source.record.quiet = self.settle == 0
        self.say(f"{name}: {said}")
        if name in ("lose_chunk", "cut_chunk", "cut", "lose", "other_columns", "times_1000"):
            self.refresh()
        last = max(self.known, default=0)
        if name == "times_1000" and last > self.served and last not in self.strange:  # a candidate
            if self.rng.random() < 0.5:
                self.say(f"back: {self.source.times_1000()}")
                self.source.record.quiet = self.settle == 0
            else:
                streampca.ModelStore(str(self.store)).promote(last)
                self.served, self.rolled_back = last, True
                self.say(f"promote {last}")
            self.refresh()

    def age(self) -> None:
        self.source.age(100)
        self.source.record.quiet = True
        self.say("a hundred seconds later")
        self.refresh()

    def new_settle(self) -> None:
        self.settle = float(self.rng.choice([0, 60]))
        self.source.record.quiet = self.source.record.quiet or self.settle == 0
        self.say(f"settle {self.settle}")
        if self.settle:
            self.source.record.quiet = False

    def refresh(self, *options: str, **request: Any) -> None:
        expected, before = self.expected(), self.served
        ((code, text),) = self.run(*options, **request)
        self.say(f"refresh {options} {request}: {code} {brief(text)}")
        self.judge(expected, before, code, text)

    def full(self) -> None:
        self.refresh("--verify", "full")

    def fail_behind(self) -> None:
        self.refresh("--fail-behind")

    def clock(self) -> None:
        ahead = float(self.rng.choice([-3600, -(10**9), 3600, 10**8]))
        quiet, self.source.record.quiet = self.source.record.quiet, False
        if ahead > 0:
            self.source.record.quiet = True
        self.refresh(clock=ahead)
        self.source.record.quiet = quiet

    def killed(self) -> None:
        how = int(self.rng.choice([signal.SIGKILL, signal.SIGTERM]))
        after = float(self.rng.random() * 0.25)
        expected, before = self.expected(), self.served
        ((code, text),) = self.run(kill=how, after=after)
        self.say(f"killed by {how} after {after:.3f}: {code} {brief(text)}")
        if code in (-9, -15, 143):
            self.look(expected, before)
            if self.known and self.served not in self.known:
                raise self.wrong("no version is served")
        else:
            self.judge(expected, before, code, text)

    def race(self) -> None:
        expected, before = self.expected(), self.served
        answers = self.run(processes=2)
        for code, text in answers:
            self.say(f"race: {code} {brief(text)}")
        mended = [answer for answer in answers if answer[0] != 75]
        if not mended and not any("may be busy" in text for _, text in answers):
            raise self.wrong("no process of a race did the work")
        if sum('"status": "published"' in text for _, text in answers) > 1:
            raise self.wrong("two processes published the same data")
        for code, text in mended[::-1]:  # the last one has seen the other's version
            self.judge(expected, before, code, text)

    def dry_run(self) -> None:
        before = sorted(str(place) for place in self.store.rglob("*"))
        expected = self.expected()
        ((code, text),) = self.run("--dry-run")
        self.say(f"dry run: {code} {brief(text)}")
        if sorted(str(place) for place in self.store.rglob("*")) != before:
            raise self.wrong("a dry run wrote to the store")
        if code == 70 or code == 124 or "Traceback" in text:
            raise self.wrong(f"a dry run ended with {code}: {text}")
        said = answered(text)
        if code == 0 and said:
            self.judge_behind(said, said.get("samples"), expected, text)

    def roll_back(self) -> None:
        if len(self.known) < 2:
            return
        store = streampca.ModelStore(str(self.store))
        try:
            version = store.rollback()
        except streampca.errors.SourceError:
            return
        self.say(f"rollback from {self.served} to {version.number}")
        self.served, self.rolled_back = version.number, True
        self.refresh()

    def promote(self) -> None:
        """A version that the gate refused, or another one that is kept."""
        if not self.known:
            return
        store = streampca.ModelStore(str(self.store))
        numbers = [
            version.number for version in store.versions() if version.number not in self.strange
        ]
        if not numbers:
            return
        number = int(self.rng.choice(numbers))
        store.promote(number)
        self.say(f"promote {number}, served was {self.served}")
        self.served, self.rolled_back = number, True
        self.refresh()

    def listed(self) -> None:
        if not self.known:
            return
        store = streampca.ModelStore(str(self.store))
        if store.verify():
            raise self.wrong(f"the store is damaged: {store.verify()}")

    def read_back(self) -> None:
        """What the source holds, to check the record itself."""
        source = self.source
        if not isinstance(source, ZarrSource) or source.broken or not source.record.rows:
            return
        there = np.asarray(source.array(source.open_store(), "r")[:], "f8")
        state, n = source.record.state, source.record.rows
        if len(there) != n:
            raise self.wrong(f"the record has {n} rows, the source {len(there)}")
        written = state[:n] == 1
        if not np.array_equal(there[written], source.record.values[:n][written], equal_nan=True):
            raise self.wrong("the record has other values than the source")

    # ---- judgement ----------------------------------------------------------------------------
    def expected(self) -> Expected:
        served = len(self.known[self.served]) if self.served else 0
        same = self.lives.get(self.served) == self.source.record.life
        expected = self.source.record.expected(served, same)
        if self.source.broken and isinstance(self.source, FileSource):
            expected.must_fail = "a file is broken"
        if self.source.stale:
            expected.may_fail = expected.may_fail or "stale consolidated metadata"
        if self.served:  # the gate
            old = self.known[self.served]
            for rows in (expected.least, expected.most):
                ratio = total(self.source.record.values[:rows]) / max(total(old), 1e-300)
                if not 1 / 19 < ratio < 19:
                    expected.may_fail = expected.may_fail or f"variance ratio {ratio}"
            if expected.least < 0.72 * served or self.source.record.rows < 0.72 * served:
                expected.may_fail = expected.may_fail or "many rows were removed"
        return expected

    def look(self, expected: Expected, before: int) -> None:
        """Every version that is new is right."""
        if not self.store.exists():
            return
        store = streampca.ModelStore(str(self.store))
        record = self.source.record
        for version in store.versions():
            if version.number in self.known:
                continue
            model = version.load()
            n = int(model.n_samples_seen_)
            problem = self.compare(model, record.values[:n])
            if problem or n > expected.most:
                raise self.wrong(f"version {version.number} of {n} rows; {expected}; {problem}")
            self.known[version.number] = record.values[:n].copy()
            self.lives[version.number] = record.life
            if self.source.broken:
                self.strange.add(version.number)
        history = store.versions()
        if history:
            self.served = store.latest().number
            if self.served != before and before:
                self.gate(before)
        if self.served != before:
            record.published(len(self.known[self.served]))

    def gate(self, before: int) -> None:
        old, new = self.known[before], self.known[self.served]
        ratio = total(new) / max(total(old), 1e-300)
        if not self.scale and len(old) > 2 and len(new) > 2 and not 1 / 20.01 < ratio < 20.01:
            raise self.wrong(f"version {self.served} passed the gate: variance ratio {ratio}")
        if len(new) < 0.699 * len(old):
            raise self.wrong(f"version {self.served} passed the gate: {len(new)} of {len(old)}")

    def compare(self, model: Any, rows: np.ndarray[Any, Any]) -> str:
        if len(rows) < 2:
            return ""
        return disagreement(model, rows, self.scale, 1e-9 if self.source.dtype == "f8" else 1e-5)

    def judge(self, expected: Expected, before: int, code: int, text: str) -> None:
        self.counts[f"exit {code}"] += 1
        self.counts["nights"] += 1
        if code in (70, 124, 1, 2) or code < 0 or "Traceback" in text:
            raise self.wrong(f"exit {code}: {text}")
        self.look(expected, before)
        said = answered(text)
        if code in (0, 79):
            self.judge_success(expected, said, text)
            return
        if "streampca: " not in text and '"note"' not in text:
            raise self.wrong(f"exit {code} without a word: {text}")
        if not (expected.must_fail or expected.may_fail) and not (code == 75 and "written" in text):
            raise self.wrong(f"exit {code} for no reason; {expected}: {text}")
        if self.served != before:
            raise self.wrong(f"exit {code}, and another version is served: {text}")

    def judge_success(self, expected: Expected, said: dict[str, Any], text: str) -> None:
        if not said:
            raise self.wrong(f"no JSON: {text}")
        if said["served"] != self.served:
            raise self.wrong(f"served is {self.served}: {text}")
        rows = self.source.record.values
        n = len(self.known[self.served]) if self.served else 0
        if said["status"] == "published":
            self.rolled_back = False
        elif self.rolled_back and "rolled back" in said["why"]:
            self.judge_behind(said, said["samples"], expected, text)
            return
        if expected.must_fail:
            raise self.wrong(f"exit 0; {expected}: {text}")
        if not expected.least <= n <= expected.most:
            raise self.wrong(f"{n} rows served; {expected}: {text}")
        if not np.array_equal(self.known.get(self.served, rows[:0]), rows[:n]):
            raise self.wrong(f"exit 0, and old rows are served: {text}")
        self.judge_behind(said, n, expected, text)

    def judge_behind(self, said: dict[str, Any], n: Any, expected: Expected, text: str) -> None:
        behind = self.source.record.rows - int(n or 0)
        if said["behind"] != behind or (behind and not (said["note"] and "behind" in text)):
            raise self.wrong(f"{behind} rows wait in silence; {expected}: {text}")


def total(rows: np.ndarray[Any, Any]) -> float:
    return float(np.nan_to_num(rows).var(0).sum()) if len(rows) > 1 else 0.0


def nights(layout: str, seed: int, steps: int, processes: Processes, loud: bool = False) -> Any:
    """Runs of 60 steps, each on a new source; returns what was counted and what went wrong."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for run in range(-(-steps // RUN)):
        with tempfile.TemporaryDirectory() as folder, zarr.config.set({"async.concurrency": 1}):
            numbers = (seed, run, [*LAYOUTS].index(layout))
            one = Nights(Path(folder), layout, numbers, processes)
            try:
                for _ in range(RUN):
                    one.step()
                    counts["steps"] += 1
            except Wrong as error:
                wrong.append(f"{layout}, seed {seed}, run {run}: {error}")
                if loud:
                    print(wrong[-1], flush=True)
            counts += one.counts
    return counts, wrong


@pytest.mark.filterwarnings("ignore")  # of writers, who are others
@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        pytest.param("group-v3", RUN, marks=pytest.mark.soak),
        *(pytest.param(layout, STEPS, marks=pytest.mark.soak) for layout in LAYOUTS),
    ],
)
def test_what_is_served_is_what_was_written(
    layout: str, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with Processes() as processes:
        counts, wrong = nights(layout, SEED, steps, processes)
    with capsys.disabled():
        print(layout, "seed", SEED, dict(counts))
    assert wrong == []


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    with Processes() as running:
        began = time.process_time(), time.time()
        counted, problems = nights(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), running, True)
    print(sys.argv[1:], dict(counted), len(problems), "wrong", time.time() - began[1], "s")
