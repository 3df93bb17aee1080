"""The contract of every registered kind of model, and of one that is defined here, outside."""

from __future__ import annotations

import doctest
import inspect
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import streampca
from streampca.accumulators import Moments
from streampca.cli.commands import main
from streampca.cli.kinds import named_kind, option_name
from streampca.errors import InvalidInputError, MemoryLimitError, NonFiniteError, SourceError
from streampca.matrix import ChunkedMatrix
from streampca.models.contract.estimator import Estimator
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import KINDS, all_kinds, estimator
from streampca.models.pca.pca import PCA
from streampca.models.results.result import Result, provenance, shaped
from streampca.models.results.row_maps import RowMap, RowOptions
from streampca.operations.config import check_job
from streampca.operations.sections import schema
from streampca.passes import Candidate, Outcome, pass_spec

README = Path(streampca.__file__).with_name("README.md")
HERE: dict[str, Any] = {"__name__": __name__}  # what the examples of that page define


def run_readme() -> doctest.TestResults:
    """Run the examples of the page for new methods: they define ScaledPCA."""
    page = doctest.DocTestParser().get_doctest(README.read_text(), {}, README.name, None, 0)
    page.globs = HERE
    return doctest.DocTestRunner().run(page, clear_globs=False)


RESULTS = run_readme()
ScaledPCA = HERE["ScaledPCA"]


def test_the_method_of_the_readme_is_fitted_transforms_and_loads() -> None:
    assert RESULTS.failed == 0
    assert RESULTS.attempted > 10


@dataclass(frozen=True)
class Distances(RowMap):
    """Squared distances of rows from some points: a map that is not linear."""

    points: np.ndarray

    @property
    def width(self) -> int:
        return len(self.points)

    def __call__(self, block: Any) -> np.ndarray:
        return ((block.dense()[:, None, :] - self.points) ** 2.0).sum(axis=2)

    def scratch_nbytes(self, matrix: Any) -> Any:
        return lambda length: 16 * length * self.points.size


@dataclass(frozen=True, repr=False, kw_only=True)
class PointsResult(Result, kind="points"):
    """A kind of result of another package: it has no components, and no noise."""

    points: np.ndarray = shaped("k", "p")
    shrinkage: float = 0.0

    @property
    def n_components(self) -> int:
        return len(self.points)

    def scores_of(self, options: RowOptions) -> Distances:
        return Distances(self.points * (1.0 - self.shrinkage))


@estimator
class FirstRows(Estimator):
    """A method of another package whose result is of a kind of its own.

    Attributes: result_.
    """

    n_components: int = parameter(
        default=2, kw_only=False, counts_components=True, meaning="number of rows."
    )

    def _request(self, matrix: ChunkedMatrix) -> int:
        return self.n_components

    def _candidates(self, matrix: ChunkedMatrix, request: int) -> list[Candidate[Any]]:
        spec = pass_spec("moments", matrix, 0, {"moments": Moments()})
        return [Candidate("rows", "one pass", (spec,))]

    def _result(self, matrix: ChunkedMatrix, request: int, done: Outcome[Any]) -> PointsResult:
        return PointsResult(
            method=self.registered_name,
            n_samples=matrix.shape[0],
            labels=matrix.labels,
            settings=self.stored_params(),
            provenance=provenance(done.costs, matrix.fingerprint(), done.memory),
            plan=done.plan.to_dict(),
            points=np.asarray(matrix.read(0, 0, request), np.float64),
        )


every = pytest.mark.parametrize("kind", sorted(all_kinds()))
VIEWS = {name: one.views for name, one in all_kinds().items()}
of_one_view = pytest.mark.parametrize("kind", sorted(k for k in VIEWS if VIEWS[k] == 1))
of_two_views = pytest.mark.parametrize("kind", sorted(k for k in VIEWS if VIEWS[k] == 2))
scoring_both = pytest.mark.parametrize(
    "kind", sorted(k for k, one in all_kinds().items() if one.scored_views == 2)
)


def counts() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.binomial(2, rng.uniform(0.2, 0.8, (1, 20)), (60, 20)).astype(np.int8)


def made(kind: str, **parameters: Any) -> Any:
    """A small model of this kind."""
    cls = KINDS[kind]
    counts = [name for name, one in cls.parameters.items() if one.counts_components]
    return cls(**dict.fromkeys(counts, 2), **{"progress": False, **parameters})


def data(kind: str) -> np.ndarray:
    return counts() if kind == "GenotypePCA" else counts().astype(np.float64)


def views(kind: str) -> tuple[np.ndarray, ...]:
    """What a model of this kind is fitted to: X, or X and Y."""
    x, cls = data(kind), KINDS[kind]
    if cls.scored_views < cls.views:  # a regression of what follows from X, and some noise
        rng = np.random.default_rng(4)
        return x[:, :12], x[:, :12] @ rng.normal(size=(12, 8)) + 0.1 * rng.normal(size=(60, 8))
    return (x,) if cls.views == 1 else (x[:, :12], x[:, 12:])


def scored(model: Any, *views: Any) -> np.ndarray:
    """The scores of all views, side by side; of a regression its predictions."""
    made = model.transform(*views)
    return np.hstack([np.asarray(one) for one in (made if model.scored_views == 2 else (made,))])


def width(kind: str) -> int:
    """Columns of the scores of a view: components, or responses."""
    return 8 if KINDS[kind].scored_views < KINDS[kind].views else 2


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
def test_a_number_that_means_missing(kind: str) -> None:
    """A code in X is what NaN in its place is: the same scores, or the same refusal."""
    x, *others = (view.astype(np.float64) for view in views(kind))
    coded, holes = x.copy(), x.copy()
    coded[3, 4], holes[3, 4] = 99.0, np.nan
    answers = []
    for values, code in ((coded, 99.0), (holes, None)):
        try:
            model = made(kind, missing_value=code, threads=1).fit(values, *others)
            answers.append(scored(model, x, *others))
        except NonFiniteError:
            answers.append(np.zeros(0))
    np.testing.assert_array_equal(*answers)


@every
def test_planned_fitted_and_pickled(kind: str) -> None:
    model, x = made(kind), views(kind)
    assert model.plan(*x).peak_nbytes > 0
    with pytest.raises(MemoryLimitError):
        made(kind, memory_limit=1000).plan(*x)
    scores = scored(model.fit(*x), *x)
    assert scores.shape == (60, width(kind) * model.scored_views)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(scored(again, *x), scores)


@every
def test_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    x = views(kind)
    model = made(kind).fit(*x)
    model.save(tmp_path / "m")
    loaded = streampca.load(tmp_path / "m")
    assert type(loaded).__name__ == ("PCA" if kind == "IncrementalPCA" else kind)
    np.testing.assert_array_equal(scored(loaded, *x), scored(model, *x))
    if kind == "IncrementalPCA":
        return
    for name, one in KINDS[kind].parameters.items():
        if one.kept is Kept.VALUE and name != "random_state":
            stored = model.result_.settings[name]
            assert getattr(loaded, name) == stored, name


def stored(kind: str, folder: Path) -> list[str]:
    """The data in chunks of rows, a store for each view."""
    paths = []
    for name, x in zip("xy", views(kind), strict=False):
        paths.append(str(folder / f"{name}.zarr"))
        zarr.create_array(paths[-1], data=x, chunks=(7, x.shape[1]))
    return paths


@every
def test_an_interrupted_fit_goes_on(kind: str, tmp_path: Path) -> None:
    paths, stopped = stored(kind, tmp_path), []

    def stop(advance: Any) -> None:
        if advance.blocks_done == 1 and not stopped:
            stopped.append(advance)
            raise KeyboardInterrupt

    expected = made(kind).fit(*paths)
    if not expected.cost_:
        return  # this fit reads nothing
    place = str(tmp_path / "kept")
    with pytest.raises(KeyboardInterrupt):
        made(kind, progress=stop, checkpoint=place).fit(*paths)
    assert stopped
    again = made(kind, checkpoint=place).fit(*paths)
    np.testing.assert_array_equal(scored(again, *paths), scored(expected, *paths))


@pytest.mark.slow
@every
def test_the_same_bits_on_a_cluster(kind: str, tmp_path: Path, two_workers: Any) -> None:
    paths = stored(kind, tmp_path)
    here, there = made(kind, scheduler="threads"), made(kind, scheduler=two_workers)
    expected = scored(here.fit(*paths), *paths)
    np.testing.assert_array_equal(scored(there.fit(*paths), *paths), expected)


@of_two_views
def test_a_job_follows_one_source(kind: str) -> None:
    with pytest.raises(InvalidInputError, match="relates two sources, and a job follows"):
        check_job({"source": {"path": "x"}, "store": "y", "model": {"kind": kind}}, "x")
    assert kind not in schema()["properties"]["model"]["properties"]["kind"]["enum"]


@of_one_view
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
    x = views(kind)
    paths = [str(tmp_path / f"{name}.npy") for name in "xy"[: len(x)]]
    for path, values in zip(paths, x, strict=True):
        np.save(path, values)
    words = ["fit", *paths, "--model", option_name(kind), "--json"]
    if any(one.counts_components for one in KINDS[kind].parameters.values()):
        words += ["-k", "2"]
    assert main([*words, "-o", str(tmp_path / "m"), "--scores", str(tmp_path / "s.zarr")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["components"] == width(kind)
    expected = scored(made(kind).fit(*x), *x)
    found = scored(streampca.load(tmp_path / "m"), *x)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@scoring_both
def test_two_views_from_the_command_line(kind: str, tmp_path: Path, capsys: Any) -> None:
    paths, x = stored(kind, tmp_path), views(kind)
    (tmp_path / "o.yaml").write_text(f"model: {option_name(kind)}\nn-components: 2\n")
    words = ["--config", str(tmp_path / "o.yaml")]
    assert main(["plan", *paths, *words]) == 0
    assert f"{kind} of 60 samples x 20 features" in capsys.readouterr().out
    scores = ["--scores", str(tmp_path / "s.zarr")]
    assert main(["fit", *paths, *words, "-q", "-o", str(tmp_path / "m"), *scores]) == 0
    expected = made(kind).fit(*x).transform(*x)
    for name, one in zip("xy", expected, strict=True):
        np.testing.assert_allclose(zarr.open_array(tmp_path / f"s-{name}.zarr")[:], one, atol=1e-12)
    again = ["-o", str(tmp_path / "t.zarr")]
    assert main(["transform", str(tmp_path / "m"), *paths, *again]) == 0
    np.testing.assert_allclose(zarr.open_array(tmp_path / "t-y.zarr")[:], expected[1], atol=1e-12)
    assert main(["transform", str(tmp_path / "m"), paths[0], *again]) == 0
    np.testing.assert_allclose(zarr.open_array(tmp_path / "t.zarr")[:], expected[0], atol=1e-12)
    assert main(["info", str(tmp_path / "m")]) == 0
    assert f"{kind}: 2 components of 60 samples x 20 features" in capsys.readouterr().out
    assert main(["fit", paths[0], "--model", option_name(kind)]) == 65
    assert "takes two sources, X and Y; here are 1" in capsys.readouterr().err


@every
def test_options_are_those_parameters(kind: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "--model", option_name(kind), "--help"])
    shown = capsys.readouterr().out
    for name, one in KINDS[kind].parameters.items():
        if name != "progress":
            first = "--no-" if one.default is True else "--"
            first = "--model-" if (kind, name) == ("FactorAnalysis", "scores") else first
            option = f" {first}{name.strip('_').replace('_', '-')}"
            assert (option in shown) is not one.inert, name


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


def test_a_result_of_another_kind(tmp_path: Path, capsys: Any) -> None:
    x = data("PCA")
    frame = xr.DataArray(x, dims=("time", "site"), coords={"site": [f"s{i}" for i in range(20)]})
    model = FirstRows(3, progress=False).fit(frame)
    expected = ((x[:, None, :] - x[:3]) ** 2).sum(axis=2)
    scores = model.transform(frame)
    assert scores.dims == ("time", "component")
    np.testing.assert_allclose(scores, expected)
    np.testing.assert_allclose(model.transform(frame.chunk(time=20)).compute(), expected)
    np.testing.assert_allclose(model.transform(frame, out=tmp_path / "s.zarr")[:], expected)
    with pytest.raises(InvalidInputError, match="features are not those of the fit"):
        model.transform(frame[:, ::-1])
    with pytest.raises(InvalidInputError, match="a FirstRows removes nothing"):
        model.transform(frame, remove="month")
    for name in ("components_", "noise_variance_", "eof_", "inverse_transform", "score_samples"):
        assert not hasattr(model, name), name
    store = streampca.ModelStore(tmp_path / "store")
    store.publish(model)
    np.testing.assert_array_equal(store.load().transform(frame), scores)
    model.save(tmp_path / "m")
    with pytest.raises(SourceError, match="it is a 'points'; expected one of model, "):
        streampca.Decomposition.load(tmp_path / "m")
    assert main(["info", str(tmp_path / "m")]) == 0
    assert "FirstRows: 3 components of 60 samples x 20 features" in capsys.readouterr().out
    np.save(tmp_path / "x.npy", x)
    words = [str(tmp_path / "m"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "t")]
    assert main(["project", *words]) == 65
    assert "holds a points; expected components" in capsys.readouterr().err


def test_a_saved_result_of_an_unknown_kind_is_refused_by_name(tmp_path: Path) -> None:
    FirstRows(3, progress=False).fit(data("PCA")).save(tmp_path / "m")
    kind = Result.kinds.pop("points")
    try:
        with pytest.raises(SourceError, match=r"it is a 'points'; expected one of model, "):
            streampca.load(tmp_path / "m")
    finally:
        Result.kinds["points"] = kind


def test_a_value_that_is_no_choice_is_refused(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "x.npy", "--model", "incremental-pca", "--missing", "impute"])
    assert "expected one of raise, mean" in capsys.readouterr().err


def test_parameters_are_documented_in_the_order_of_the_signature() -> None:
    for cls in all_kinds().values():
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
    (tmp_path / "o.yaml").write_text(
        "model: hard-impute\nrank: [1, 2]\nbounds: null\nvalidation: 0.1\ntol: 1e-4\n"
    )
    assert main([*words, "--config", str(tmp_path / "o.yaml")]) == 0
    model = streampca.load(tmp_path / "m")
    assert (model.bounds, model.tol) == (None, 1e-4)


@pytest.mark.parametrize(
    "words",
    [
        "genotype-pca --variants 1",
        "genotype-pca --ploidy two",
        "genotype-pca --maf x",
        "incremental-pca --state truncated --max-rows x",
        "hard-impute --rank all",
        "ppca --tol x",
    ],
)
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


@pytest.mark.filterwarnings("ignore::streampca.errors.ConvergenceWarning")
def test_a_kind_has_only_what_it_can_answer() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 6))
    holes = np.where(rng.random(x.shape) < 0.1, np.nan, x)
    factors = streampca.FactorAnalysis(2, progress=False).fit(data("PCA"))
    completed = streampca.HardImpute(2, progress=False, max_passes=9).fit(holes)
    lacking = {
        factors: ("tracy_widom", "r2_of", "reconstruction_error", "row_mean", "total_squares"),
        completed: ("tracy_widom", "r2_of", "likelihood_of", "covariance", "fitted"),
        streampca.PCA(2, progress=False).fit(x): ("row_mean", "likelihood", "uniquenesses"),
    }
    for model, names in lacking.items():
        assert not [name for name in names if hasattr(model.result_, name)]
        assert len(model.r2_curve()) == 3
    with pytest.raises(InvalidInputError, match=r"compare models by score\(X\)"):
        factors.reconstruction_error(x)
    with pytest.raises(InvalidInputError, match=r"a HardImpute of .* fit streampca\.PPCA"):
        completed.get_covariance()
