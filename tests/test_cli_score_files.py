"""The end of an output's name decides its format, or is refused before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import streampca
from streampca.cli import main
from streampca.errors import ConfigError, InvalidInputError
from streampca.operations.config import check_job

X = np.random.default_rng(0).standard_normal((30, 5))


@pytest.fixture
def model(tmp_path: Path) -> Any:
    zarr.save_array(tmp_path / "x.zarr", X)
    found = streampca.PCA(2, progress=False).fit(str(tmp_path / "x.zarr"))
    found.save(tmp_path / "model")
    return found


def numbers(path: Path) -> Any:
    """As another library reads them."""
    readers: dict[str, Any] = {
        ".npy": np.load,
        ".parquet": pd.read_parquet,
        ".csv": pd.read_csv,
        ".tsv": lambda file: pd.read_csv(file, sep="\t"),
        ".zarr": lambda place: zarr.open_array(place, mode="r")[...],
    }
    found = readers[path.suffix](path)
    if not isinstance(found, pd.DataFrame):
        return found
    assert [*map(str, found.pop("sample"))] == [*map(str, range(30))]
    assert [*found] == ["PC1", "PC2"]
    return found.to_numpy()


@pytest.mark.parametrize("end", [".tsv", ".csv", ".parquet", ".npy", ".zarr"])
def test_each_format_holds_the_scores(tmp_path: Path, model: Any, end: str) -> None:
    source, new, kept = str(tmp_path / "x.zarr"), tmp_path / f"s{end}", tmp_path / f"kept{end}"
    line = ["transform", str(tmp_path / "model"), source, "-o", str(new)]
    assert main(line) == 0
    np.testing.assert_array_equal(numbers(new), model.transform(X))
    assert main(["fit", source, "-k", "2", "--scores", str(kept), "-q"]) == 0
    np.testing.assert_allclose(np.abs(numbers(kept)), np.abs(numbers(new)), atol=1e-12)
    assert main(line) == 73  # it is there
    assert main([*line, "--overwrite"]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        [kept.name, "model", new.name, "x.zarr"]
    )


def test_tables_of_two_views_and_of_named_samples(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, index=[f"a b {i}" for i in range(30)], columns=[*"abcde"])
    frame.to_csv(tmp_path / "x.csv", index_label="id")
    source = [str(tmp_path / "x.csv"), "--index", "id"]
    assert main(["fit", *source, "-k", "2", "-q", "--scores", str(tmp_path / "s.tsv")]) == 0
    found = pd.read_csv(tmp_path / "s.tsv", sep="\t", index_col="sample")
    assert [*found.index] == [*frame.index]
    zarr.save_array(tmp_path / "x.zarr", X)
    both = [str(tmp_path / "x.zarr")] * 2
    assert main(["fit", *both, "--model", "cca", "-q", "--scores", str(tmp_path / "v.csv")]) == 0
    shapes = [pd.read_csv(tmp_path / f"v-{view}.csv").shape for view in "xy"]
    assert shapes[0] == shapes[1]
    assert shapes[0][0] == 30


REFUSED = (
    "transform {model} {x} -o {out}.xlsx",
    "transform {model} {x} -o {out}.txt",
    "fit {x} --scores {out}.h5",
    "fit {x} -o {out}.npy",
    "fit {x} -o {out}.zarr",
    "impute {x} --completed {out}.csv",
    "impute {x} --scores {out}.json",
    "convert {x} -o {out}.parquet",
    "project {model} {x} -o {out}.parquet",
    "transform {model} {x} -o s3://bucket/s.tsv",
    "fit {x} --model truncated-svd --scores {out}.md",
)


@pytest.mark.parametrize("line", REFUSED)
def test_unknown_suffixes_of_score_files_are_refused(
    tmp_path: Path, model: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"model": tmp_path / "model", "x": tmp_path / "x.zarr", "out": tmp_path / "out"}
    assert main([word.format(**places) for word in line.split()]) == 65
    assert "expected a name" in capsys.readouterr().err or "s3" in line
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model", "x.zarr"]


@pytest.mark.parametrize("end", [".tsv", ".csv", ".parquet", ".npy", ".H5", ".nc"])
def test_python_and_jobs_write_zarr_and_no_name_that_promises_another_format(
    tmp_path: Path, model: Any, end: str
) -> None:
    out = str(tmp_path / f"s{end}")
    with pytest.raises(InvalidInputError, match=r"expected a name such as scores\.zarr"):
        model.transform(X, out=out)
    job = {"source": {"path": "x.zarr"}, "model": {}, "store": "m", "scores": {"path": out}}
    with pytest.raises(ConfigError, match=r"scores\.path.*expected a name such as scores\.zarr"):
        check_job(job, "job.yaml")
    assert not (tmp_path / f"s{end}").exists()


@pytest.mark.parametrize("end", ["npy", "csv", "parquet"])
def test_scores_do_not_replace_the_file_they_are_made_of(end: str, tmp_path: Path) -> None:
    source, other = tmp_path / f"x.{end}", tmp_path / "y.npy"
    frame = pd.DataFrame(X, columns=[*"abcde"])
    {
        "npy": lambda: np.save(source, X),
        "csv": lambda: frame.to_csv(source, index=False),
        "parquet": lambda: frame.to_parquet(source),
    }[end]()
    before = source.read_bytes()
    place, to = str(source), str(tmp_path / "model")
    assert main(["fit", place, "-k", "2", "-o", to, "--scores", place, "--overwrite"]) == 65
    assert main(["fit", place, "-k", "2", "-o", to, "--scores", str(other)]) == 0
    for overwrite in ([], ["--overwrite"]):
        assert main(["transform", to, place, "-o", place, *overwrite]) == 65
        pattern = str(tmp_path / "x.*")
        assert main(["transform", to, pattern, "-o", place, *overwrite]) == 65
    assert source.read_bytes() == before
    assert main(["transform", to, place, "-o", str(other), "--overwrite"]) == 0
