"""The contract of every registered kind of model, and of one that is defined here, outside."""

from __future__ import annotations

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca
from streampca.cli.kinds import named_kind, option_name
from streampca.cli.main import main
from streampca.errors import InvalidInputError, MemoryLimitError, SourceError
from streampca.models import shared_parameters as shared
from streampca.models.linear import LinearModel, attach
from streampca.models.parameters import Kept, parameter
from streampca.models.pca.pca import PCA
from streampca.models.registry import KINDS, estimator
from streampca.operations.config import check_job
from streampca.operations.sections import schema


@estimator
class ScaledPCA(LinearModel):
    """A method of another package: PCA of the columns divided by their standard deviations.

    Attributes: as :class:`PCA`.
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="number of components."
    )
    missing: str = parameter(default="raise", choices=("raise", "mean"), meaning="of holes.")
    whiten: bool = shared.WHITEN
    missing_value: float | None = shared.MISSING_VALUE
    memory_limit: int | str | None = shared.MEMORY_LIMIT
    scheduler: Any = shared.SCHEDULER
    progress: Any = shared.PROGRESS
    checkpoint: str | None = shared.CHECKPOINT

    def _pca(self) -> PCA:
        return PCA(scale="std", **self.get_params())

    def plan(self, X: Any, *, dim: Any = None) -> Any:
        return self._pca().plan(X, dim=dim)

    def fit(self, X: Any, y: Any = None, *, dim: Any = None) -> Any:
        base = self._pca().fit(X, dim=dim)
        self.plan_, self.cost_, self.dim_ = base.plan_, base.cost_, dim
        attach(self, base.result_)
        vars(self.result_)["method"] = "ScaledPCA"
        return self


every = pytest.mark.parametrize("kind", sorted(KINDS))


def counts() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.binomial(2, rng.uniform(0.2, 0.8, (1, 20)), (60, 20)).astype(np.int8)


def made(kind: str, **parameters: Any) -> Any:
    """A small model of this kind."""
    cls = KINDS[kind]
    count = next(name for name, one in cls.parameters.items() if one.counts_components)
    return cls(**{count: 2, "progress": False, **parameters})


def data(kind: str) -> np.ndarray:
    return counts() if kind == "GenotypePCA" else counts().astype(np.float64)


@every
def test_parameters_are_declared_once(kind: str) -> None:
    cls = KINDS[kind]
    signature = inspect.signature(cls)
    assert sorted(signature.parameters) == sorted(cls.parameters) == sorted(cls().get_params())
    for name, one in cls.parameters.items():
        assert getattr(cls(), name) is one.default
        assert one.meaning.endswith((".", "?")) or "``" in one.meaning, name
        assert f"\n{name} : " in (cls.__doc__ or ""), name
    with pytest.raises(TypeError, match=rf"{kind}\(\) got an unexpected keyword argument 'odd'"):
        cls(odd=1)


@every
def test_planned_fitted_and_pickled(kind: str) -> None:
    model, x = made(kind), data(kind)
    assert model.plan(x).peak_nbytes > 0
    with pytest.raises(MemoryLimitError):
        made(kind, memory_limit=1000).plan(x)
    scores = np.asarray(model.fit(x).transform(x))
    assert scores.shape == (60, 2)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(np.asarray(again.transform(x)), scores)


@every
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    x = data(kind)
    model = made(kind).fit(x)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert type(loaded).__name__ == ("PCA" if kind == "IncrementalPCA" else kind)
    np.testing.assert_array_equal(np.asarray(loaded.transform(x)), np.asarray(model.transform(x)))
    if kind == "IncrementalPCA":
        return
    for name, one in KINDS[kind].parameters.items():
        if one.kept is Kept.VALUE and name != "random_state":
            stored = model.result_.settings[name]
            assert getattr(loaded, name) == stored, name


@every
def test_a_job_file_takes_its_parameters(kind: str, tmp_path: Path) -> None:
    names = [name for name, one in KINDS[kind].parameters.items() if not one.process]
    job = check_job({"source": {"path": "x"}, "store": "y", "model": {"kind": kind}}, "x")
    assert type(job.estimator()) is KINDS[kind]
    part = next(
        one["then"]["properties"]
        for one in schema()["properties"]["model"]["allOf"]
        if one["if"]["properties"]["kind"]["const"] == kind
    )
    assert sorted(part) == sorted(names)


@every
def test_fitted_from_the_command_line(kind: str, tmp_path: Path, capsys: Any) -> None:
    x = data(kind)
    np.save(tmp_path / "x.npy", x)
    words = ["fit", str(tmp_path / "x.npy"), "--model", option_name(kind), "-k", "2", "--json"]
    assert main([*words, "-o", str(tmp_path / "m"), "--scores", str(tmp_path / "s.zarr")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["components"] == 2
    expected = np.asarray(made(kind).fit(x).transform(x))
    found = np.asarray(streampca.load(tmp_path / "m").transform(x))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@every
def test_options_are_those_parameters(kind: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--model", option_name(kind), "--help"])
    shown = capsys.readouterr().out
    for name, one in KINDS[kind].parameters.items():
        if name != "progress":
            first = "--no-" if one.default is True else "--"
            first = "--model-" if (kind, name) == ("FactorAnalysis", "scores") else first
            assert f"{first}{name.strip('_').replace('_', '-')}" in shown, name


def test_an_unknown_kind_is_refused_by_name(tmp_path: Path, capsys: Any) -> None:
    ScaledPCA(2, progress=False).fit(data("PCA")).save(tmp_path / "m")
    cls = KINDS.pop("ScaledPCA")
    try:
        with pytest.raises(SourceError, match=r"'ScaledPCA'; known here: .*PCA"):
            streampca.load(tmp_path / "m")
    finally:
        KINDS["ScaledPCA"] = cls
    assert main(["fit", "x.npy", "--model", "scaled-pac"]) == 65
    assert "did you mean scaled-pca?" in capsys.readouterr().err


def test_a_value_that_is_no_choice_is_refused(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "x.npy", "--model", "scaled-pca", "--missing", "impute"])
    assert "expected one of raise, mean" in capsys.readouterr().err


def test_parameters_are_documented_in_the_order_of_the_signature() -> None:
    for cls in KINDS.values():
        text = cls.__doc__ or ""
        places = [text.index(f"\n{name} : ") for name in inspect.signature(cls).parameters]
        assert places == sorted(places)


def test_null_and_text_and_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", data("GenotypePCA"))
    words = ["fit", str(tmp_path / "x.npy"), "-q", "-o", str(tmp_path / "m"), "--overwrite"]
    assert main([*words, "--model", "genotype-pca", "--scale", "null", "-k", "2"]) == 0
    assert streampca.load(tmp_path / "m").scale is None
    place = str(tmp_path / "2026")
    more = ["--tol", "1e-3", "--max-passes", "9", "--checkpoint", place, "-k", "2"]
    assert main([*words, "--mod", "pca", *more]) == 0
    assert streampca.load(tmp_path / "m").result_.settings["tol"] == 1e-3
    assert main([*words, "--model", "soft-impute", "-k", "2", "--lambda", "0.5"]) == 0
    (tmp_path / "o.yaml").write_text("model: hard-impute\nrank: [1, 2]\nbounds: null\n"
                                     "validation: 0.1\ntol: 1e-4\n")  # fmt: skip
    assert main([*words, "--config", str(tmp_path / "o.yaml")]) == 0
    model = streampca.load(tmp_path / "m")
    assert (model.bounds, model.tol) == (None, 1e-4)


@pytest.mark.parametrize(
    "words",
    [
        "genotype-pca --variants 1", "genotype-pca --ploidy two", "genotype-pca --maf x",
        "incremental-pca --state truncated --max-rows x", "hard-impute --rank all", "ppca --tol x",
    ],
)  # fmt: skip
def test_values_of_another_type_are_named(words: str, tmp_path: Path, capsys: Any) -> None:
    x = data("PCA")
    x[0, 0] = np.nan if words.startswith("ppca") else 0
    np.save(tmp_path / "x.npy", counts() if words.startswith("geno") else x)
    assert main(["fit", str(tmp_path / "x.npy"), "-q", "--model", *words.split()]) == 65
    assert "fault of streampca" not in capsys.readouterr().err


def test_scores_that_are_written_are_those_of_transform(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 40))
    np.save(tmp_path / "x.npy", x)
    words = ["fit", str(tmp_path / "x.npy"), "-q", "--model", "pca", "--whiten", "-k", "3"]
    assert main([*words, "-o", str(tmp_path / "m"), "--scores", str(tmp_path / "s.zarr")]) == 0
    found = np.asarray(streampca.open(tmp_path / "s.zarr").read(0, 0, 12))
    np.testing.assert_allclose(found, streampca.load(tmp_path / "m").transform(x), atol=1e-10)


def test_a_name_is_of_one_class_and_a_constructor_stays() -> None:
    with pytest.raises(InvalidInputError, match=r"registered a PCA already"):
        estimator(type("PCA", (LinearModel,), {"__module__": "elsewhere"}))
    assert KINDS["PCA"] is PCA

    def own(self: Any, gain: float = 1.0) -> None:
        self.gain = 100 * gain

    made: Any = type("Own", (LinearModel,), {"__init__": own, "__module__": __name__})
    try:
        assert estimator(made)(2.0).gain == 200
    finally:
        del KINDS["Own"]


def test_a_file_of_options_may_name_the_kind(tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", data("PCA"))
    (tmp_path / "o.yaml").write_text("model: ppca\nn-components: 3\nwhiten: true\n")
    words = ["fit", str(tmp_path / "x.npy"), "--config", str(tmp_path / "o.yaml"), "--json"]
    assert main([*words, "-o", str(tmp_path / "m")]) == 0
    model = streampca.load(tmp_path / "m")
    assert isinstance(model, streampca.PPCA)
    assert model.n_components == 3
    assert model.whiten


def test_only_fits_name_a_kind() -> None:
    assert named_kind(["fit", "x", "--model", "PPCA"]) == "PPCA"
    assert named_kind(["store", "export", "m", "--model", "path"]) is None
    assert named_kind([]) is None
