"""Rows of a nightly job, watched: what a version keeps, the gate of outliers, and the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca
from streampca.cli.commands import main
from streampca.errors import ConfigError, SourceError
from streampca.operations.config import check_job
from streampca.operations.refresh import refresh

P = 12


def rows(n: int, seed: int) -> Any:
    strong = np.random.default_rng(9).normal(size=(2, P)) * 3.0
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)) @ strong + rng.normal(size=(n, P))


class Nights:
    def __init__(self, folder: Path, **model: Any) -> None:
        self.source, self.store = str(folder / "x.zarr"), str(folder / "models")
        array = zarr.create_array(self.source, shape=(400, P), chunks=(50, P), dtype="f8")
        array[...] = rows(400, 0)
        self.entries: dict[str, Any] = {
            "source": {"path": self.source},
            "model": {"n_components": 2, **model},
            "store": self.store,
            "settle": 0,
            "monitor": {"alpha": 0.01},
            "gate": {"max_outliers": 0.1},
        }

    def run(self) -> Any:
        return refresh(check_job(self.entries, "job"))


@pytest.mark.parametrize(
    "model", [{}, {"kind": "PCA", "solver": "randomized"}], ids=["appended", "iterated"]
)
def test_a_night_of_outliers_is_refused(model: dict[str, Any], tmp_path: Path) -> None:
    nights = Nights(tmp_path, **model)
    nights.run()
    first = streampca.ModelStore(nights.store).latest().distances()
    streampca.append(nights.source, rows(60, 1))
    done = nights.run()
    seen = done.drift["outliers"]
    assert (done.status, seen["rows"]) == ("published", 60)
    assert seen["share"] == seen["alarms"]["either"] / 60 < 0.1
    assert done.drift["sampled"]["shared"] == 400
    store = streampca.ModelStore(nights.store)
    for version, n in (("1", 400), ("2", 460)):
        arrays, _ = store.find(version).distances()
        again = streampca.monitor(
            store.find(version).load(), zarr.open_array(nights.source)[:n], rows="fit"
        )
        np.testing.assert_array_equal(arrays["t2"], again.t2)
        np.testing.assert_array_equal(arrays["spe"], again.spe)
    np.testing.assert_array_equal(store.find("1").distances()[0]["t2"], first[0]["t2"])
    faulty = rows(30, 2)
    faulty[:, 4] += 8.0
    streampca.append(nights.source, faulty)
    for _ in range(2):  # judged again by what was stored
        done = nights.run()
        assert (done.status, done.served) == ("refused", 2)
        assert "30 of 30 new rows are outliers" in done.gate
        assert "over gate.max_outliers 0.1" in done.gate
    nights.entries["gate"] = {}
    assert nights.run().status == "published"


def test_only_a_pca_watches_rows_and_a_version_says_what_it_lacks(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    for kind, entries in (("monitor", {}), ("gate.max_outliers", {"gate": {"max_outliers": 0.1}})):
        job = {**nights.entries, "model": {"kind": "PPCA"}, "gate": {}, **entries}
        if entries:
            del job["monitor"]
        with pytest.raises(ConfigError, match=f"job: {kind}: PCA or .* a PPCA does not"):
            check_job(job, "job")
    with pytest.raises(ConfigError, match=r"job: monitor.alpha: expected less than 1"):
        check_job({**nights.entries, "monitor": {"alpha": 5}}, "job")
    del nights.entries["monitor"]
    nights.run()
    with pytest.raises(SourceError, match="version 1 keeps no T2 and SPE"):
        streampca.ModelStore(nights.store).latest().distances()


def test_the_commands_write_and_name_what_is_watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = Nights(tmp_path)
    nights.run()
    new = rows(40, 3)
    new[11, 7] += 12.0
    np.save(tmp_path / "new.npy", new)
    table = tmp_path / "new.csv"
    argv = ["monitor", nights.store, str(tmp_path / "new.npy"), "-o", str(table), "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outliers"][0]["row"], found["outliers"][0]["alarms"]) == (11, ["spe"])
    assert next(iter(found["outliers"][0]["features"]["spe"])) == "feature 7"
    lines = table.read_text().splitlines()
    assert lines[0] == "sample,T2,SPE,missing,T2_alarm,SPE_alarm"
    assert lines[12].split(",")[3:] == ["0.0", "0.0", "1.0"]
    seen = streampca.monitor(streampca.load(nights.store), new)
    assert float(lines[12].split(",")[2]) == seen.spe[11]
    array = str(tmp_path / "new.zarr")
    argv[4:] = [array, "--reference", nights.source, "--alpha", "0.05"]
    assert main(argv) == 0
    assert "quantile of 400 rows of the fit" in capsys.readouterr().out
    assert zarr.open_array(array).attrs["columns"][:2] == ["T2", "SPE"]
    out = str(tmp_path / "kept.csv")
    assert main(["models", "export", nights.store, "--distances", out]) == 0
    assert len(Path(out).read_text().splitlines()) == 401
    assert main(["models", "diff", nights.store, "1", "1"]) == 0
    assert "Krzanowski's index" in capsys.readouterr().out
