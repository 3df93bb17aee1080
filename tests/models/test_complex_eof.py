"""Complex EOFs are the singular vectors of the complex matrix, however it is stored and cut."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr

import streampca
from streampca import ComplexEOF
from streampca.cli import main
from streampca.errors import InvalidInputError, InvalidTypeError
from streampca.kernels import probe
from streampca.models.decompose import hermitian_krylov
from streampca.solvers import rotate_loadings
from tests.each import each

rng = np.random.default_rng(0)
SIZES = {"tall": (70, 12), "wide": (12, 70)}
SOLVERS = ("scatter", "tsqr", "gram")


def noise(*shape: int) -> Any:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def field(n: int, p: int) -> Any:
    """Of decreasing singular values, with a mean."""
    few = min(n, p)
    return noise(n, few) @ (0.7 ** np.arange(few)[:, None] * noise(few, p)) + 5 * noise(1, p)


def months(n: int) -> Any:
    return np.eye(3)[np.arange(n) % 3]


def oracle(z: Any, w: Any = None, weights: Any = None, remove: Any = None) -> tuple[Any, ...]:
    """(residuals, s, vh) of rows with weights w, features with weights, without columns."""
    root = np.sqrt(np.ones(len(z)) if w is None else w)[:, None]
    columns = np.ones((len(z), 1)) if remove is None else remove
    fitted = columns @ np.linalg.lstsq(root * columns, root * z, rcond=None)[0]
    left = (z - fitted) * (1.0 if weights is None else weights)
    return left, *np.linalg.svd(root * left, full_matrices=False)[1:]


def check(model: Any, z: Any, found: Any, w: Any = None, **known: Any) -> None:
    """Values, vectors up to phase, its convention, scores, shares and rows."""
    left, s, vh = oracle(z, w, **known)
    k = model.n_components_
    c = model.components_
    np.testing.assert_allclose(model.singular_values_, s[:k], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(c * vh[:k].conj(), axis=1)), 1, atol=1e-10)
    turn = c @ probe(0, c.shape[1])
    np.testing.assert_allclose(turn.imag, 0, atol=1e-10)
    assert (turn.real > 0).all()
    np.testing.assert_allclose(found, left @ c.conj().T, atol=1e-10 * s[0])
    ratio = s[:k] ** 2 / np.sum(s**2)
    np.testing.assert_allclose(model.explained_variance_ratio_, ratio, rtol=1e-10)
    if model.result_.scores is not None and w is None:
        np.testing.assert_allclose(model.result_.scores, found, atol=1e-10 * s[0])
    assert model.certificate_.determined.all()


@each("size", SIZES)
@each("solver", SOLVERS)
def test_as_the_svd_of_the_centred_matrix(size: str, solver: str) -> None:
    n, p = SIZES[size]
    z, w, weights = field(n, p), rng.integers(1, 4, n) + 0.0, rng.uniform(0.5, 2, p)
    model = ComplexEOF(3, solver=solver, progress=False).fit(z)
    check(model, z, model.transform(z))
    rows = model.mean_ + model.transform(z) @ model.components_
    np.testing.assert_allclose(model.inverse_transform(model.transform(z)), rows, atol=1e-10)
    heavy = ComplexEOF(3, solver=solver, weights=weights, progress=False).fit(z, sample_weight=w)
    check(heavy, z, heavy.transform(z), w, weights=weights)
    named = {"solver": solver, "progress": False}
    less = ComplexEOF(3, remove=months(n)[:, 1:], **named).fit(z)
    check(less, z, less.transform(z, remove=months(n)[:, 1:]), remove=months(n))
    scaled = ComplexEOF(3, scale="std", **named).fit(z)
    check(scaled, z, scaled.transform(z), weights=1 / z.std(axis=0, ddof=1))


@each("size", SIZES)
@each("missing", ["raise", "mean"])
def test_land_and_holes(size: str, missing: str) -> None:
    z = field(*SIZES[size])
    z[:, 4].imag = np.nan  # a cell is missing where either part is
    sea = np.delete(np.arange(z.shape[1]), 4)
    if missing == "mean":
        z[3, 7] = z[5, 7] = z[0, 0] = np.nan
    means = np.nanmean(z[:, sea], axis=0)
    filled = np.where(np.isnan(z[:, sea]), means, z[:, sea])
    for solver in ("scatter", "gram"):
        model = ComplexEOF(2, solver=solver, missing=missing, progress=False)
        with pytest.warns(streampca.errors.DroppedFeaturesWarning):
            model.fit(z)
        assert not model.components_[:, 4].any()
        assert model.result_.dropped.tolist() == [4]
        _, s, vh = oracle(filled)
        np.testing.assert_allclose(model.singular_values_, s[:2], rtol=1e-10)
        inner = np.abs(np.sum(model.components_[:, sea] * vh[:2].conj(), axis=1))
        np.testing.assert_allclose(inner, 1, atol=1e-10)
        if missing == "mean":
            counts = model.result_.missing_by_sample
            assert counts[[0, 1, 3, 5]].tolist() == [2, 1, 2, 2]


FIELD = xarray.DataArray(
    field(60, 24).reshape(60, 4, 6),
    dims=("time", "lat", "lon"),
    coords={"time": np.arange("2000-01", "2005-01", dtype="M8[M]").astype("M8[ns]")},
    name="current",
)


def stored(folder: Path) -> dict[str, Any]:
    """The same numbers, however they are held and cut."""
    z = FIELD.values.reshape(60, 24)
    zarr.create_array(str(folder / "z.zarr"), data=z, chunks=(13, 5))
    np.save(folder / "z.npy", z)
    return {
        "columns in memory": np.asfortranarray(z),
        "masked": np.ma.masked_array(z, np.zeros(z.shape, bool)),
        "big-endian": z.astype(">c16"),
        "dask": da.from_array(z, chunks=(7, 5)),
        "zarr": str(folder / "z.zarr"),
        "npy": str(folder / "z.npy"),
        "xarray": FIELD,
        "lazy xarray": FIELD.chunk(time=9, lon=4),
        "opened": streampca.open(z),
        "dataset": xarray.Dataset({"u": FIELD[:, :2], "v": FIELD[:, 2:]}),
    }


def test_any_source_and_chunks_give_the_same(tmp_path: Path) -> None:
    z = FIELD.values.reshape(60, 24)
    plain = ComplexEOF(3, progress=False).fit(z)
    expected = plain.transform(z)
    for name, x in stored(tmp_path).items():
        labelled = name in ("xarray", "lazy xarray", "dataset")
        dim = "time" if labelled else None
        for solver in ("scatter", "gram"):
            model = ComplexEOF(3, solver=solver, progress=False).fit(x, dim=dim)
            np.testing.assert_allclose(model.components_, plain.components_, atol=1e-10)
            scores = model.transform(x)
            np.testing.assert_allclose(np.asarray(scores), expected, atol=1e-10, err_msg=name)
            assert isinstance(scores, xarray.DataArray) == labelled


def test_labels_months_and_a_saved_model(tmp_path: Path) -> None:
    model = ComplexEOF(2, solver="gram", remove="month", progress=False).fit(FIELD, dim="time")
    found = model.result_.to_xarray()
    assert found.components.dims == found.amplitude.dims == ("component", "lat", "lon")
    np.testing.assert_allclose(found.phase, np.angle(found.components))
    np.testing.assert_allclose(found.score_amplitude, np.abs(found.scores))
    left = (FIELD.groupby("time.month") - FIELD.groupby("time.month").mean()).values.reshape(60, -1)
    scores = model.transform(FIELD)
    np.testing.assert_allclose(scores, left @ model.components_.conj().T, atol=1e-10)
    np.testing.assert_allclose(model.transform(FIELD.chunk(time=7)), scores, atol=1e-10)
    again = streampca.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(again.transform(FIELD), scores)
    back = again.inverse_transform(scores)
    assert back.dims == FIELD.dims
    assert np.iscomplexobj(back)


def test_an_empty_month_of_a_field_is_left_out() -> None:
    gone = FIELD.where(FIELD.time != FIELD.time[7])
    with pytest.warns(streampca.errors.EmptySamplesWarning):
        model = ComplexEOF(2, progress=False).fit(gone, dim="time")
    rest = FIELD.drop_isel(time=7)
    plain = ComplexEOF(2, progress=False).fit(rest, dim="time")
    np.testing.assert_allclose(model.components_, plain.components_, atol=1e-10)
    scores = model.transform(gone).values
    assert np.isnan(scores[7]).all()
    np.testing.assert_allclose(np.delete(scores, 7, axis=0), plain.transform(rest), atol=1e-9)


def test_the_model_of_the_rows() -> None:
    z = field(200, 6)
    model = ComplexEOF(None, progress=False).fit(z)
    np.testing.assert_allclose(model.get_covariance(), np.cov(z, rowvar=False), atol=1e-10)
    model = ComplexEOF(2, progress=False).fit(z)
    s, d = model.get_covariance(), z - z.mean(axis=0)
    np.testing.assert_allclose(s @ model.get_precision(), np.eye(6), atol=1e-9)
    distance = np.einsum("ij,jk,ik->i", d.conj(), np.linalg.inv(s), d).real
    density = -6 * np.log(np.pi) - np.linalg.slogdet(s)[1] - distance
    np.testing.assert_allclose(model.score_samples(z), density, rtol=1e-9)
    values = np.linalg.svd(d, compute_uv=False)
    np.testing.assert_allclose(model.reconstruction_error(z), np.sum(values[2:] ** 2) / len(z))
    np.testing.assert_allclose(model.r2_curve(z), model.r2_curve(), atol=1e-12)


def test_real_data_are_complex_without_imaginary_parts() -> None:
    x = field(50, 9).real
    model, plain = ComplexEOF(3, progress=False).fit(x), streampca.PCA(3, progress=False).fit(x)
    np.testing.assert_allclose(model.components_, plain.components_, atol=1e-10)
    np.testing.assert_allclose(model.transform(x), plain.transform(x), atol=1e-10)
    with pytest.raises(InvalidInputError, match=r"analytic\(X\)\); imaginary parts of 0: X \+ 0j"):
        ComplexEOF(1).fit(x + 1j).transform(da.from_array(x))
    with pytest.raises(InvalidInputError, match="'mle'"):
        ComplexEOF("mle").fit(x)


ITERATIONS = hermitian_krylov.hermitian_krylov_candidates


@each("axis", [0, 1])
@pytest.mark.filterwarnings("ignore::streampca.errors.AccuracyWarning")  # equal variances
def test_an_iteration_is_certified(axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over either axis, with weights of samples and features, in either precision."""

    def of_axis(*asked: Any) -> list[Any]:
        return [one for one in ITERATIONS(*asked) if one.passes[0].axis == axis]

    monkeypatch.setattr(hermitian_krylov, "hermitian_krylov_candidates", of_axis)
    few = 0.6 ** np.arange(12)[:, None]
    z = 10 * noise(150, 12) @ (few * noise(12, 110)) + 0.01 * noise(150, 110) + 7
    w, weights = rng.integers(1, 4, 150) + 0.0, rng.uniform(0.5, 2, 110)
    for sides in ({}, {"w": w}, {"weights": weights}, {"remove": months(150)}):
        if axis == 0 and "remove" in sides:
            continue  # which takes streamed features
        known = {name: value for name, value in sides.items() if name != "w"}
        removed = {"remove": months(150)[:, 1:]} if "remove" in sides else {}
        named = known | removed | {"progress": False, "max_passes": 20}
        model = ComplexEOF(3, solver="randomized", tol=1e-12, **named)
        model.fit(z, sample_weight=sides.get("w"))
        assert model.plan_.solver == "krylov"
        assert (model.certificate_.angle_bound <= 1e-7).all()
        check(model, z, model.transform(z, **removed), **sides)
    single = ComplexEOF(3, solver="randomized", progress=False).fit(z.astype(np.complex64))
    _, s, vh = oracle(z)
    np.testing.assert_allclose(single.singular_values_, s[:3], rtol=1e-5)
    angle = np.arccos(np.minimum(np.abs(np.sum(single.components_ * vh[:3].conj(), axis=1)), 1))
    assert (angle <= single.certificate_.angle_bound + 1e-6).all()


def test_what_is_of_real_data_refuses_complex_models_and_side_data() -> None:
    x, z = noise(30, 4).real, noise(30, 4)
    model = ComplexEOF(2, progress=False).fit(z)
    asked = {
        "monitor": lambda: streampca.monitor(model, z),
        "bootstrap": lambda: streampca.bootstrap(model, z),
        "POP": lambda: streampca.oscillation_patterns(model, scores=model.transform(z)),
        "OPA": lambda: streampca.persistent_patterns(model.result_, 2),
        "certify": lambda: streampca.certify(model, x),
        "sign": lambda: model.result_.top_features(0, sign=1),
        "Tracy-Widom": lambda: model.result_.tracy_widom(),
        "weights": lambda: streampca.PCA(1, weights=abs(z[0]) + 1j).fit(x),
        "sample_weight": lambda: streampca.PCA(1).fit(x, sample_weight=abs(z[:, 0]) + 1j),
        "remove": lambda: ComplexEOF(1, remove=z[:, :1]).fit(z),
        "scores": lambda: streampca.PCA(2).fit(x).eof_.pcs(scores=z[:, :2]),
    }
    for name, ask in asked.items():
        with pytest.raises((InvalidInputError, InvalidTypeError)) as found:
            ask()
        assert "complex" in str(found.value) or name in ("sign", "Tracy-Widom"), name


# Rotation.


def simplicity(loadings: Any) -> float:
    """Kaiser's criterion of squared moduli."""
    squares = np.abs(loadings / np.linalg.norm(loadings, axis=1, keepdims=True)) ** 2
    return float(np.sum(squares**2) - np.sum(squares.sum(axis=0) ** 2) / len(squares))


def test_varimax_finds_what_was_turned_and_is_no_worse_than_any_rotation() -> None:
    planted = np.kron(np.eye(4), np.ones((15, 1))) * noise(60, 1)
    unitary = np.linalg.qr(noise(4, 4))[0]
    found = rotate_loadings(planted @ unitary)
    np.testing.assert_allclose(np.sort(np.abs(unitary @ found.matrix))[:, 3], 1, atol=1e-9)
    loadings = noise(40, 3) * [3, 2, 1]
    best = simplicity(rotate_loadings(loadings).loadings)
    assert best > max(simplicity(loadings @ np.linalg.qr(noise(3, 3))[0]) for _ in range(500))
    real = loadings.real
    both = [simplicity(rotate_loadings(one).loadings) for one in (real, real + 0j)]
    assert both[1] > both[0] * (1 - 1e-9)


@each("method", ["varimax", "quartimax", "promax"])
def test_rotated_modes_make_the_same_rows(method: str, tmp_path: Path) -> None:
    z = field(80, 10)
    model = ComplexEOF(3, progress=False).fit(z)
    rotated = streampca.rotate(model, method)
    scores = rotated.transform(z)
    rows = model.inverse_transform(model.transform(z))
    np.testing.assert_allclose(rotated.inverse_transform(scores), rows, atol=1e-10)
    np.testing.assert_allclose(rotated.explained_variance_, np.var(scores, axis=0, ddof=1))
    phi = np.corrcoef(scores, rowvar=False)
    np.testing.assert_allclose(phi, rotated.result_.correlations, atol=1e-10)
    assert (np.abs(phi - np.eye(3)).max() > 1e-3) == (method == "promax")
    np.testing.assert_allclose(rotated.unrotated().components_, model.components_, atol=1e-10)
    np.testing.assert_allclose(rotated.score(z), model.score(z))
    again = streampca.load(rotated.save(tmp_path / "m"))
    np.testing.assert_array_equal(again.transform(z), scores)


# The certificate.


@pytest.mark.soak
def test_certificates_hold() -> None:
    for seed in range(150):
        certificate_holds(seed)


def test_a_few_certificates_hold() -> None:
    for seed in range(6):
        certificate_holds(seed)


def certificate_holds(seed: int) -> None:
    """Of float32 and float64 sums, against the decomposition of the same numbers in float64."""
    draw = np.random.default_rng(seed)
    n, p, k = draw.integers(5, 90), draw.integers(5, 90), int(draw.integers(1, 5))
    decay = draw.uniform(0.3, 1) ** np.arange(min(n, p))
    parts = draw.normal(size=(2, n, len(decay))), draw.normal(size=(2, len(decay), p))
    left, right = (one[0] + 1j * one[1] for one in parts)
    z = left * decay @ right + draw.choice([0, 10, 1000])
    z = z.astype(np.complex64 if seed % 2 else np.complex128)
    model = ComplexEOF(k, solver=SOLVERS[seed % 3], progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", streampca.errors.AccuracyWarning)
        warnings.simplefilter("ignore", streampca.errors.DominantFeatureWarning)
        model.fit(z)
    found, bound, k = model.explained_variance_, model.certificate_, model.n_components_
    _, s, vh = np.linalg.svd(z - z.astype(complex).mean(axis=0), full_matrices=False)
    variances = s[:k] ** 2 / (n - 1)
    slack = 1e-13 * variances[0]
    assert (np.abs(found - variances) <= bound.variance_bound + slack).all(), seed
    inner = np.abs(np.sum(model.components_ * vh[:k].conj(), axis=1))
    angles = np.arccos(np.minimum(inner, 1))
    assert (angles <= bound.angle_bound + 1e-7)[: model.rank_].all(), seed


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables have a column for either part: the imaginary one was dropped."""
    z, path = field(30, 5), str(tmp_path / "z.zarr")
    zarr.create_array(path, data=z)
    scores = str(tmp_path / "s.csv")
    assert main(["fit", path, "-k", "2", "-o", str(tmp_path / "m")]) != 0
    assert "a model that takes them: --model complex-eof" in capsys.readouterr().err
    fit = ["fit", path, "--model", "complex-eof", "-k", "2", "-o", str(tmp_path / "m"), "--quiet"]
    for solver in ("gram", "scatter"):  # scores that the fit keeps, and of another pass
        more = ["--solver", solver, "--scores", scores, "--overwrite"]
        assert main([*fit, *more]) == 0
        table = np.genfromtxt(scores, delimiter=",", names=True)
        expected = streampca.load(tmp_path / "m").transform(z)
        found = np.stack([table[f"PC{i}_real"] + 1j * table[f"PC{i}_imag"] for i in (1, 2)], axis=1)
        np.testing.assert_allclose(found, expected, atol=1e-12)
