"""Bootstrap, jackknife and formulas: compared with refits, and the coverage of intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import zarr

import streampca
from streampca import PCA, PPCA, GenotypePCA, TruncatedSVD, bootstrap, jackknife, sampling_errors
from streampca.accumulators import Scatter
from streampca.accumulators.grouped import ByGroup
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import Block
from streampca.models.explore.sample_certainty import INTERVALS
from streampca.passes import limited_threads
from streampca.solvers.noise_edge import noise_p_values
from streampca.solvers.resampling import ScoreSpace, Units
from streampca.solvers.tracy_widom import tracy_widom_sf
from tests.each import each
from tests.genotypes import write_plink

Array = np.ndarray[Any, Any]
SPREAD = np.sqrt([10, 5, 2.5, 1, 0.8, 0.6, 0.4, 0.2])
RESAMPLES, K = 25, 3


def rows(n: int = 40, p: int = 8) -> Array:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, p)) + 30.0
    X[:, : len(SPREAD)] *= SPREAD[: X.shape[1]]
    return X


def refits(
    X: Array, counts: list[Array], centred: bool = True, scaled: bool = False
) -> tuple[Array, Array, Array]:
    """(variances, shares, components with the signs of the whole) by NumPy, of repeated rows."""
    found: list[tuple[Array, Array, Array]] = []
    for weights in [np.ones(len(X)), *counts]:
        drawn = X.repeat(weights.astype(int), axis=0)
        left = drawn - drawn.mean(axis=0) if centred else drawn
        left = left / left.std(axis=0, ddof=1) if scaled else left
        _, s, v = np.linalg.svd(left, full_matrices=False)
        values = s**2 / (len(drawn) - centred)
        v = v[:K]
        signs = np.sign(np.sum(v * (found[0][2] if found else v), axis=1))
        found.append((values[:K], values[:K] / values.sum(), v * signs[:, None]))
    whole = found.pop(0)
    return tuple(np.stack(part) for part in zip(*found, whole, strict=True))


def draws(units: Units, seed: int = 5) -> list[Array]:
    return [units.weights(units.counts(seed, i)) for i in range(RESAMPLES)]


TALL, WIDE = rows(), rows(20, 60)
FAMILIES = np.repeat(np.arange(10), 4)[np.random.default_rng(1).permutation(40)]
CASES: dict[str, tuple[Array, Units, dict[str, Any]]] = {
    "rows": (TALL, Units(40), {}),
    "scaled": (TALL, Units(40), {}),
    "wide": (WIDE, Units(20), {}),
    "blocks": (TALL, Units(40, block=6), {"blocks": 6}),
    "families": (TALL, Units(40, FAMILIES), {"groups": [f"f{one}" for one in FAMILIES]}),
}


@each("name", CASES)
def test_a_resample_has_the_components_of_a_refit(name: str) -> None:
    X, units, options = CASES[name]
    scale = "std" if name == "scaled" else None
    model = PCA(None, scale=scale, progress=False).fit(X)
    read = {} if name == "wide" else {"X": X}
    found = bootstrap(
        model,
        **read,
        n_resamples=RESAMPLES,
        n_components=K,
        match="sign",
        random_state=5,
        **options,
    )
    variances, shares, components = refits(X, draws(units), scaled=scale is not None)
    assert found.exact
    assert found.variances.replicates is not None
    np.testing.assert_allclose(found.variances.replicates, variances[:-1], rtol=1e-10)
    np.testing.assert_allclose(found.shares.replicates, shares[:-1], rtol=1e-10)
    errors = components[:-1].std(axis=0, ddof=1)
    np.testing.assert_allclose(found.component_errors(), errors, rtol=1e-8, atol=1e-10)
    moved = []
    for weights, axes in zip(draws(units), components[:-1], strict=True):
        drawn = X.repeat(weights.astype(int), axis=0)
        row = (X[7] - drawn.mean(axis=0)) / (drawn.std(axis=0, ddof=1) if scale else 1.0)
        moved.append(axes[:2] @ row)
    signs = np.sign(np.sum(components[-1] * model.components_[:K], axis=1))[:2]
    expected = np.cov(np.transpose(moved)) * np.outer(signs, signs)
    np.testing.assert_allclose(found.score_covariances((0, 1))[7], expected, rtol=1e-8)


@each("axes, centred", [(None, True), (None, False), ("columns", True)])
def test_influences_are_derivatives_by_weights(axes: str | None, centred: bool) -> None:
    scores = PCA(8, progress=False).fit_transform(TALL)
    turn = None if axes is None else np.linalg.qr(np.random.default_rng(8).normal(size=(8, 8)))[0]
    space = ScoreSpace(scores, 8, 0.7 if axes is None else 0.0, centred, 0.0, "sign", turn)
    units, step, ends = Units(40, FAMILIES), 1e-6, []
    weights = np.random.default_rng(9).integers(1, 4, 40).astype(float)
    found = space.influences(space.under(weights), weights, units)
    for sign in (-1, 1):
        one = space.under(weights + sign * step * (units.groups == 3))
        ends.append(np.log([one.variances, one.shares]))
    expected = weights.sum() * (ends[1] - ends[0]) / (2 * step)
    np.testing.assert_allclose([one[3] for one in found], expected, rtol=1e-5, atol=1e-5)


def test_uncentred_rows_stay_uncentred() -> None:
    X = rows() / 30
    model = TruncatedSVD(8, progress=False).fit(X)
    found = bootstrap(
        model, scores=model.transform(X), n_resamples=RESAMPLES, match="sign", random_state=5
    )
    expected = refits(X, draws(Units(40)), centred=False)[0][:-1] * 40 / model.result_.weight
    np.testing.assert_allclose(found.variances.replicates[:, :K], expected, rtol=1e-10)


def test_the_jackknife_leaves_rows_out_as_refits_do() -> None:
    model, left = PCA(8, progress=False).fit(TALL), []
    for group in range(10):
        part = TALL[group != FAMILIES]
        _, s, v = np.linalg.svd(part - part.mean(axis=0), full_matrices=False)
        v *= np.sign(np.sum(v * model.components_, axis=1))[:, None]
        left.append(np.column_stack([s**2 / 35, v]))
    spread = np.sqrt(0.9 * np.sum((np.stack(left) - np.mean(left, axis=0)) ** 2, axis=0))[:K]
    found = jackknife(model, TALL, groups=FAMILIES, n_components=K, match="sign")
    np.testing.assert_allclose(found.variances.errors, spread[:, 0], rtol=1e-9)
    np.testing.assert_allclose(found.component_errors(), spread[:, 1:], rtol=1e-7, atol=1e-12)


def test_the_jackknife_leaves_features_out_as_refits_do() -> None:
    groups = np.random.default_rng(2).integers(0, 6, 60)
    model, left = PCA(19, progress=False).fit(WIDE), []
    sizes = np.bincount(groups)
    for group in range(6):
        part = WIDE[:, groups != group]
        s = np.linalg.svd(part - part.mean(axis=0), compute_uv=False)
        left.append(s[:K] ** 2 / 19 * 60 / (60 - sizes[group]))
    expected = delete_m(model.explained_variance_[:K], left, sizes)
    found = jackknife(model, features=groups, n_components=K, match="sign")
    np.testing.assert_allclose(found.variances.errors, expected, rtol=1e-9)
    assert found.score_covariances((0, 1)).shape == (20, 2, 2)
    with pytest.raises(InvalidInputError, match="leave rows out"):
        found.component_errors()


def delete_m(whole: Array, left: list[Array], sizes: Array) -> Array:
    """Standard errors by Busing, Meijer and van der Leeden 1999, eq. 8."""
    times = [float(sizes.sum() / size) for size in sizes]
    each = list(zip(times, left, strict=True))
    mean = len(sizes) * whole - np.sum([(1 - 1 / h) * one for h, one in each], axis=0)
    squares = [(h * whole - (h - 1) * one - mean) ** 2 / (h - 1) for h, one in each]
    return np.sqrt(np.mean(squares, axis=0))


@each("scale", [None, "std"])
@each("X", {"tall": TALL, "wide": rows(40, 60)}.values())
def test_sums_of_groups_of_rows_are_those_of_refits(X: Array, scale: str | None) -> None:
    """Whatever the model kept, and in whatever order the rows come."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, [f"r{i}" for i in range(40)]).add_prefix("f")
    groups = np.random.default_rng(3).integers(0, 6, 40)
    model = PCA(K, scale=scale, progress=False).fit(frame)
    mixed = frame.iloc[np.random.default_rng(4).permutation(40)]
    for options, numbers in (({"groups": groups}, groups), ({"blocks": 7}, np.arange(40) // 7)):
        left = [refits(X, [numbers != group], scaled=scale is not None) for group in range(6)]
        found = jackknife(model, mixed, exact=True, match="sign", **options)
        assert found.exact
        sizes = np.bincount(numbers)
        for one, of in enumerate((found.variances.errors, found.shares.errors)):
            expected = delete_m(left[0][one][1], [each[one][0] for each in left], sizes)
            np.testing.assert_allclose(of, expected, rtol=1e-10)
        expected = delete_m(left[0][2][1], [each[2][0] for each in left], sizes)
        np.testing.assert_allclose(found.component_errors(), expected, rtol=1e-9, atol=1e-13)


def test_sums_of_groups_of_features_are_those_of_refits(tmp_path: Path) -> None:
    """Blocks that hold several groups, or parts of them, of a fit that kept a few components."""
    groups = np.sort(np.random.default_rng(2).integers(0, 6, 60))
    settings: dict[str, Any] = {"scale": "std", "weights": np.linspace(1, 2, 60), "progress": False}
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=WIDE, chunks=(20, 9))
    full = jackknife(PCA(19, **settings).fit(WIDE), features=groups, n_components=K, match="sign")
    model = PCA(K, **settings).fit(path)
    found = jackknife(model, path, features=groups, exact=True, match="sign")
    assert found.exact
    for one in ("variances", "shares"):
        errors = [getattr(each, one).errors for each in (found, full)]
        np.testing.assert_allclose(*errors, rtol=1e-10)
    both = (each.score_covariances((0, 1)) for each in (found, full))
    np.testing.assert_allclose(*both, rtol=1e-8, atol=1e-12)
    with pytest.raises(InvalidInputError, match="leave X out, or add exact=True"):
        jackknife(model, path, features=groups)
    with pytest.raises(InvalidInputError, match="expected X, and blocks="):
        jackknife(model, path, exact=True)
    with pytest.raises(InvalidInputError, match="leave scores out"):
        jackknife(model, path, scores=WIDE, blocks=3, exact=True)
    with pytest.raises(InvalidInputError, match="other variances"):
        jackknife(model, WIDE[::-1] * 2, blocks=3, exact=True)
    with pytest.raises(MemoryLimitError, match="largest term is folded accumulators"):
        jackknife(model.set_params(memory_limit="1MB"), WIDE, blocks=3, exact=True)


def test_sums_of_groups_merge_and_are_restored() -> None:
    sums, whole = ByGroup(inner=Scatter(), groups=3), ByGroup(inner=Scatter(), groups=3)
    for start in (0, 20):
        part, stop = sums.blank(), start + 20
        numbers = np.arange(start, stop) % 4 - 1  # -1 is left out
        part.update(Block(TALL[start:stop], 0, start, stop, arrays={"group": numbers}))
        whole.merge(part.from_state(part.state()))
    for group, one in whole.parts.items():
        np.testing.assert_allclose(
            one.covariance(), np.cov(TALL[np.arange(40) % 4 - 1 == group].T), rtol=1e-12
        )
    assert sorted(whole.parts) == [0, 1, 2]


@pytest.mark.slow
def test_families_and_chromosomes_are_those_of_the_files(tmp_path: Path) -> None:
    write_plink(tmp_path / "x", np.random.default_rng(6).integers(0, 3, (20, 60)).astype(np.int8))
    columns = {"fam": [0, 0, *np.repeat(range(1, 7), 3)], "bim": 1 + np.arange(60) // 10}
    for name, first in columns.items():
        path = tmp_path / f"x.{name}"
        rest = (line.split()[1:] for line in path.read_text().splitlines())
        lines = (
            "\t".join([str(f + (name == "bim")), *r]) for f, r in zip(first, rest, strict=True)
        )
        path.write_text("\n".join(lines) + "\n")
    model = GenotypePCA(2, progress=False).fit(tmp_path / "x.bed")
    named = bootstrap(model, n_resamples=20, groups="family")
    alone = [-1, -2, *np.repeat(range(1, 7), 3)]  # a family of 0 is none
    assert named.drawn == "20 resamples of 8 groups of 20 rows"
    same = jackknife(model, groups=alone), jackknife(model, groups="family")
    assert np.array_equal(*(one.shares.errors for one in same))
    genome = jackknife(model, features="chromosome"), jackknife(model, features=np.arange(60) // 10)
    assert np.array_equal(*(one.shares.errors for one in genome))
    kept = GenotypePCA(2, keep=[f"s{i}" for i in range(3, 20)], progress=False)
    few = streampca.load(kept.fit(tmp_path / "x.bed").save(tmp_path / "few"))  # has the ids
    full = kept.set_params(n_components=16).fit(tmp_path / "x.bed")
    sums = jackknife(few, tmp_path / "x.bed", features="chromosome", exact=True)
    held = jackknife(full, features="chromosome", n_components=2)
    np.testing.assert_allclose(sums.shares.errors, held.shares.errors, rtol=1e-5)
    with pytest.raises(InvalidInputError, match="no column"):
        bootstrap(model, groups="tribe")


def test_bits_do_not_depend_on_threads() -> None:
    model, found = PCA(8, progress=False).fit(TALL), []
    for threads in (1, 3):
        with limited_threads(threads):
            found.append(bootstrap(model, TALL, n_resamples=40, groups=FAMILIES))
    for one in ("deviations", "cosines", "span_cosines"):
        assert np.array_equal(getattr(found[0], one), getattr(found[1], one))
    assert np.array_equal(*(one.shares.interval() for one in found))


def test_what_has_no_scores_enters_by_its_bound() -> None:
    """Of wide rows two strong components are kept; the bootstrap of all components is the truth."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 2)) * [40, 20] @ np.linalg.qr(rng.normal(size=(300, 2)))[0].T
    X += rng.normal(size=X.shape)
    settings: dict[str, Any] = {"n_resamples": 200, "n_components": 2}
    full = bootstrap(PCA(None, progress=False).fit(X), **settings)
    part = bootstrap(PCA(2, progress=False).fit(X), **settings)
    assert (full.exact, part.exact) == (True, False)
    assert "without scores" in str(part)
    scaled = bootstrap(PCA(None, scale="std", progress=False).fit(X), **settings)
    assert not scaled.exact  # of r < p directions, divisors stay
    assert "scale as in the fit>" in repr(scaled)
    ratio = part.component_errors() / full.component_errors()
    assert 0.95 < np.median(ratio) < 1.15
    assert np.all((part.angles() > 0.9 * full.angles()) & (part.angles() < 1.3 * full.angles()))
    np.testing.assert_allclose(part.variances.errors, full.variances.errors, rtol=0.05)
    np.testing.assert_allclose(part.shares.errors, full.shares.errors, rtol=0.1)
    assert full.variances.replicates is not None
    assert part.variances.replicates is not None
    rise = np.mean(full.variances.replicates - part.variances.replicates, axis=0)
    bound = part.left_out.shifts
    assert np.all((rise > 0) & (rise < 1.3 * bound) & (bound < 3 * rise))
    scores = [np.sqrt(np.einsum("nii->ni", one.score_covariances((0, 1)))) for one in (full, part)]
    assert np.all(np.abs(np.median(scores[1] / scores[0], axis=0) - 1.0) < 0.1)


def test_means_in_holes_that_stay_are_not_called_exact() -> None:
    holed, groups = TALL.copy(), np.arange(len(TALL)) % 6
    holed[::7, 1] = np.nan
    model = PCA(None, missing="mean", progress=False).fit(holed)
    kept = jackknife(model, holed, groups=groups)
    assert not kept.exact
    assert repr(kept).endswith("; missing as in the fit>")
    anew = jackknife(model, holed, groups=groups, exact=True, match="sign")
    assert anew.exact
    each: Any = PCA(None, missing="mean", progress=False)
    left = [each.fit(holed[groups != group]).explained_variance_ for group in range(6)]
    expected = delete_m(model.explained_variance_, left, np.bincount(groups))
    np.testing.assert_allclose(anew.variances.errors, expected, rtol=1e-9)


@pytest.mark.slow
def test_formulas_are_those_of_normal_rows() -> None:
    X = rows(4000, 8)
    model = PCA(8, progress=False).fit(X)
    drawn, formula = bootstrap(model, X, n_resamples=300), sampling_errors(model)
    north = np.sqrt(2.0 / 3999) * model.explained_variance_
    np.testing.assert_allclose(formula.variances.errors, north, rtol=1e-12)
    for one in ("variances", "shares"):
        errors = [getattr(found, one).errors for found in (drawn, formula)]
        np.testing.assert_allclose(*errors, rtol=0.2)
    ratio = drawn.component_errors() / formula.component_errors()
    assert abs(np.median(ratio[:3]) - 1.0) < 0.1
    np.testing.assert_allclose(drawn.angles()[:3], formula.angles()[:3], rtol=0.2)
    few = sampling_errors(model, n_effective=401).variances.errors
    np.testing.assert_allclose(few, north * np.sqrt(3999 / 400))


@pytest.mark.slow
def test_bca_intervals_are_those_of_scipy() -> None:
    x = np.random.default_rng(4).gamma(2.0, size=100)
    variance = scipy.stats.bootstrap(
        (x,), lambda x, axis: np.var(x, ddof=1, axis=axis), n_resamples=4000, rng=1
    )
    model = PCA(1, progress=False).fit(x[:, None])
    found = bootstrap(model, x[:, None], n_resamples=4000).variances
    ends = variance.confidence_interval
    np.testing.assert_allclose(found.interval(kind="bca")[0], [ends.low, ends.high], rtol=0.03)
    np.testing.assert_allclose(found.errors, variance.standard_error, rtol=0.05)


@pytest.mark.slow
def test_nearly_equal_variances_are_matched_or_rotated() -> None:
    """Of two equal variances the axes are anything, and the plane is certain."""
    X = np.random.default_rng(5).normal(size=(300, 5)) * [5, 5, 2, 2, 2]
    model = PCA(5, progress=False).fit(X)
    angles = {
        match: bootstrap(model, X, n_resamples=100, n_components=2, match=match).angles()
        for match in ("sign", "order", "procrustes")
    }
    assert np.all(angles["procrustes"] < 0.2)
    assert np.all(angles["order"] <= angles["sign"])
    assert np.all(angles["order"] > 0.4)
    assert bootstrap(model, X, n_resamples=100, n_components=2).span_angle() < 0.2


def test_noise_of_equal_features_has_the_edge_of_johnstone() -> None:
    """Johnstone 2001, Ann. Statist. 29, 295, theorem 1; of unequal ones see the soak test."""
    n, p = 200.0, 50
    edge = (np.sqrt(n) + np.sqrt(p)) ** 2 / n
    width = (np.sqrt(n) + np.sqrt(p)) * (1 / np.sqrt(n) + 1 / np.sqrt(p)) ** (1 / 3) / n
    values = 3.0 * (edge + width * np.array([-2.0, 0.0, 0.98, 2.02]))
    found = noise_p_values(values, np.full(p, 3.0), n)
    np.testing.assert_allclose(found, tracy_widom_sf([-2.0, 0.0, 0.98, 2.02]), rtol=1e-9)
    X = np.random.default_rng(0).normal(size=(300, 40))
    X[:, :20] += np.random.default_rng(1).normal(size=(300, 1))
    for scale in (None, "std"):
        sure = sampling_errors(PCA(3, scale=scale, progress=False).fit(X))
        of_rest, parallel = sure.noise
        assert (parallel < 0.05).tolist() == [True, False, False]
        assert (of_rest < 0.05).tolist() == [scale is not None, False, False]
    assert sure.to_dict()["noise"]["parallel"] == parallel.tolist()


@each(
    "options, said",
    {
        "no scores": ({}, "scores=model.transform"),
        "both": ({"X": TALL, "scores": TALL}, "one of them"),
        "others": ({"X": TALL * 1.1}, "of the rows of"),
        "fewer": ({"X": TALL[:20]}, "rows of the fit"),
        "width": ({"scores": TALL[:, :5]}, "expected"),
        "match": ({"X": TALL, "match": "best"}, "procrustes"),
        "level": ({"X": TALL, "n_resamples": 3}, "n_resamples=3"),
        "groups": ({"X": TALL, "groups": [0, 1] * 20}, "2 groups"),
        "a group": ({"X": TALL, "groups": [0.0, np.nan] * 20}, "NaN"),
        "blocks": ({"X": TALL, "blocks": 30}, "from 1 to 8"),
        "two": ({"X": TALL, "blocks": 3, "groups": FAMILIES}, "one of them"),
        "k": ({"X": TALL, "n_components": 9}, "from 1 to 8"),
    }.values(),
)
def test_what_cannot_be_resampled_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        bootstrap(PCA(8, progress=False).fit(TALL), **options)


def test_whitened_scores_are_those_of_transform() -> None:
    whitened, plain = (PCA(8, whiten=one, progress=False).fit(TALL) for one in (True, False))
    expected = bootstrap(plain, TALL, n_resamples=20).variances.errors
    for options in ({"X": TALL}, {"scores": whitened.transform(TALL)}):
        found = bootstrap(whitened, n_resamples=20, **options)
        np.testing.assert_allclose(found.variances.errors, expected, rtol=1e-10)


def test_models_without_principal_components_are_refused() -> None:
    weighted = PCA(8, progress=False).fit(TALL, sample_weight=np.arange(1.0, 41.0))
    with pytest.raises(InvalidInputError, match="without sample weights"):
        bootstrap(weighted, TALL)
    with pytest.raises(InvalidInputError, match="principal"):
        sampling_errors(PPCA(2, progress=False).fit(TALL))


# Coverage of 95 % intervals, by hand: pytest -m soak -s


def _normal(rng: np.random.Generator) -> Array:
    return rng.normal(size=(200, 8))


def _heavy(rng: np.random.Generator) -> Array:
    return _normal(rng) * np.sqrt(7.0 / rng.chisquare(9, size=(200, 1)))  # t, 9 degrees of freedom


def _skewed(rng: np.random.Generator) -> Array:
    return (rng.gamma(4.0, size=(200, 8)) - 4.0) / 2.0


def _series(rng: np.random.Generator) -> Array:
    x = rng.normal(size=(450, 8)) * np.sqrt(0.75)
    for i in range(1, len(x)):
        x[i] += 0.5 * x[i - 1]
    return x[50:]


def _families(rng: np.random.Generator) -> Array:
    shared = np.repeat(rng.normal(size=(80, 8)), 4, axis=0)
    return np.sqrt(0.6) * shared + np.sqrt(0.4) * rng.normal(size=(320, 8))


SOURCES = np.diag(SPREAD)
MIXED = np.linalg.cholesky(0.55 ** np.abs(np.subtract.outer(np.arange(8), np.arange(8)))).T
POPULATIONS: dict[str, tuple[Any, Array, dict[str, Any]]] = {
    "normal": (_normal, SOURCES, {}),
    "heavy tails": (_heavy, SOURCES, {}),
    "skewed": (_skewed, SOURCES, {}),
    "series": (_series, SOURCES, {"blocks": 8}),
    "families": (_families, SOURCES, {"groups": np.repeat(np.arange(80), 4)}),
    "correlations": (_normal, MIXED, {}),
}


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@each("n, p", [(100, 40), (60, 300), (500, 12), (80, 1000)])
def test_noise_is_rarely_taken_for_structure(n: int, p: int) -> None:
    """By parallel analysis where features vary unequally, by both where they are scaled."""
    rng, seen = np.random.default_rng(7), []
    for _ in range(200):
        X = rng.normal(size=(n, p)) * np.sqrt(rng.gamma(2.0, size=p))
        plain, scaled = (PCA(2, scale=one, progress=False).fit(X) for one in (None, "std"))
        (_, alone), (of_rest, both) = (sampling_errors(one).noise for one in (plain, scaled))
        seen.append([alone[0], both[0], of_rest[0]])
    shares = np.mean(np.array(seen) < 0.05, axis=0)
    print(f"{n} x {p}: parallel {shares[0]:.3f}, of scaled features {shares[1:]}")
    assert np.all(shares <= 0.08)  # two standard deviations above .05


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::streampca.errors.DominantFeatureWarning")
@pytest.mark.parametrize("name", POPULATIONS)
def test_intervals_hold_the_population(name: str) -> None:
    draw, mixing, options = POPULATIONS[name]
    values, vectors = np.linalg.eigh(mixing.T @ mixing)
    truth, axes = values[::-1][:K], vectors.T[::-1][:K]
    shares, held = truth / values.sum(), []
    for seed in range(200):
        X = draw(np.random.default_rng([seed, 38])) @ mixing
        model = PCA(8, scale="std" if mixing is MIXED else None, progress=False).fit(X)
        sure = bootstrap(model, X, n_components=K, random_state=seed, **options)
        v = model.components_[:K]
        cosines = np.sum(v * axes, axis=1)
        v = v * np.sign(cosines)[:, None]
        within = {
            f"{what} {kind}": _within(getattr(sure, what).interval(kind=kind), value)
            for what, value in (("variances", truth), ("shares", shares))
            for kind in INTERVALS
        }
        within["angles"] = np.arccos(np.minimum(np.abs(cosines), 1.0)) <= sure.angles()
        near = np.abs(v - axes) <= 1.96 * sure.component_errors()
        varies = np.abs(axes) < 0.99  # an entry of 1 has no normal error
        within["components"] = np.array(
            [one[own].mean() for one, own in zip(near, varies, strict=True)]
        )
        held.append(within)
    coverage = {one: np.mean([each[one] for each in held], axis=0) for one in held[0]}
    for one, found in coverage.items():
        print(f"{name:12} {one:22} {found.mean():.3f}  {found.round(3)}")
    for one in ("variances studentized", "shares studentized", "angles", "components"):
        assert 0.92 <= coverage[one].mean() <= 0.98, one
        assert coverage[one].min() >= 0.90, one  # .92 to .98 of 1,000 data sets


def _within(interval: Array, value: Array) -> Array:
    return np.asarray((interval[:, 0] <= value) & (value <= interval[:, 1]))
