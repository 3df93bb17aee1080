"""POP and OPA from the PCs of a fit: NumPy's own from the field, xeofs', planted signals, gaps."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import xarray as xr

import streampca
from streampca import PCA, oscillation_patterns, persistent_patterns
from streampca.errors import InvalidInputError

YEARS, LAT, LON, K = 40, 4, 6, 5
N, RNG = 12 * YEARS, np.random.default_rng(0)
TIMES = np.arange("1980-01", "2020-01", dtype="M8[M]").astype("M8[ns]")
LATS = np.array([0.0, 20.0, 40.0, 60.0])
XEOFS = pytest.mark.skipif(
    importlib.util.find_spec("xeofs") is None,
    reason="xeofs is not installed: pip install 'streampca[peers]'",
)


def red(n: int, p: int, memory: Any, rng: np.random.Generator = RNG) -> np.ndarray:
    """(n, p) AR(1) series of variance 1."""
    noise = rng.standard_normal((n, p)) * np.sqrt(1 - np.square(memory))
    out = np.zeros((n, p))
    for t in range(1, n):
        out[t] = memory * out[t - 1] + noise[t]
    return out


@cache
def field() -> xr.DataArray:
    """A damped wave of 30 months, a persistent pattern, an annual cycle, noise; some land."""
    place = np.linspace(0, 4, LAT * LON)
    z = np.zeros(N, complex)
    for t in range(1, N):
        z[t] = 0.97 * np.exp(2j * np.pi / 30) * z[t - 1] + RNG.standard_normal()
    wave = np.real(z[:, None] * np.exp(-1j * place))
    slow = 2 * red(N, 1, 0.98) * np.sin(3 * place)
    month = 4 * np.cos(2 * np.pi * np.arange(N) / 12)[:, None] * np.cos(place)
    x = wave + slow + month + 0.7 * RNG.standard_normal((N, LAT * LON))
    x[:, :3] = np.nan
    return xr.DataArray(
        x.reshape(N, LAT, LON),
        {"time": TIMES, "lat": LATS, "lon": np.arange(6.0)},
        ("time", "lat", "lon"),
        "sst",
        {"units": "K"},
    )


@cache
def model() -> PCA:
    return PCA(K, weights="coslat", remove="month", progress=False).fit(field(), dim="time")


def pops_of(**options: Any) -> streampca.OscillationPatterns:
    return oscillation_patterns(model(), scores=model().project(field()), **options)


def opps_of(max_lag: int) -> streampca.PersistentPatterns:
    return persistent_patterns(model(), max_lag, scores=model().project(field()))


@cache
def numpy_pcs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(PCs, EOFs (K, p), roots of the cosines) by NumPy alone, land left out."""
    x = field().values.reshape(N, -1)[:, 3:]
    x = (x.reshape(YEARS, 12, -1) - x.reshape(YEARS, 12, -1).mean(axis=0)).reshape(N, -1)
    root = np.sqrt(np.cos(np.deg2rad(np.repeat(LATS, LON))))[3:]
    u, s, vh = np.linalg.svd(x * root, full_matrices=False)
    return u[:, :K] * s[:K], vh[:K], root


def close(found: Any, expected: Any, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def test_pops_are_those_of_the_lag_one_regression() -> None:
    pcs, eofs, root = numpy_pcs()
    first, second = pcs[:-1], pcs[1:]
    values, vectors = np.linalg.eig((second.T @ first) @ np.linalg.inv(first.T @ first))
    pops = pops_of()
    adjoint = pops_of(coefficients="adjoint")
    assert pops.n_pairs == N - 1
    for i, value in enumerate(pops.eigenvalues):
        j = int(np.argmin(np.abs(values - value)))
        close(value, values[j])
        pattern = vectors[:, j] @ eofs
        mine = pops.components[i, 3:]
        close(abs(np.vdot(mine, pattern)), 1.0)
        assert abs(mine.real @ mine.imag) < 1e-12
        assert np.linalg.norm(mine.real) >= np.linalg.norm(mine.imag)
        basis = np.column_stack([mine.real, -mine.imag])
        fitted = np.linalg.lstsq(basis, eofs.T @ pcs.T, rcond=None)[
            0
        ]  # rows ~ Re(z component), alone
        close(pops.scores[:, i], fitted[0] + 1j * fitted[1])
        variance = np.sum((basis @ fitted) ** 2) / (N - 1)
        close(pops.explained_variance_ratio[i], variance / model().result_.total_variance)
        z = adjoint.scores[:, i]
        if abs(value.imag) == 0:  # the residual of the regression is orthogonal to the PCs
            close(np.vdot(z[:-1], z[1:]) / np.vdot(z[:-1], z[:-1]), value)
        else:
            own = np.linalg.lstsq(np.column_stack([z[:-1], z[:-1].conj()]), z[1:], rcond=None)[0]
            close(own, [value, 0])
    whole = np.real(adjoint.scores @ adjoint.components[:, 3:])
    close(whole, pcs @ eofs)
    close(adjoint.transform(model().project(field())), adjoint.scores)
    amplitude = np.sqrt(np.mean(np.abs(pops.scores) ** 2, axis=0))
    close(pops.patterns[:, 3:], pops.components[:, 3:] / root * amplitude[:, None])


def test_opps_solve_the_generalised_problem_of_delsole() -> None:
    pcs, eofs, root = numpy_pcs()
    lags = 24
    c = [pcs[: N - t].T @ pcs[t:] / (N - t - 1) for t in range(lags + 1)]
    m = c[0] / 2 + sum(c[1:lags]) + c[lags] / 2
    times, vectors = scipy.linalg.eigh((m + m.T) / 2, c[0])
    found = opps_of(lags)
    close(found.decorrelation_times, times[::-1])
    patterns = (c[0] @ vectors[:, ::-1]).T @ eofs / root
    close(np.abs(found.patterns[:, 3:]), np.abs(patterns))
    close(np.abs(found.scores), np.abs(pcs @ vectors[:, ::-1]))
    close(found.scores.T @ found.scores / (N - 1), np.eye(K))
    close((pcs @ eofs / root) @ found.filters[:, 3:].T, found.scores)
    close(found.explained_variance_ratio.sum(), model().explained_variance_ratio_.sum())
    close(found.transform(model().project(field())), found.scores)


@XEOFS
@pytest.mark.filterwarnings("ignore")
def test_as_pop_and_opa_of_xeofs() -> None:
    from xeofs.single import OPA, POP

    anomalies = field().groupby("time.month") - field().groupby("time.month").mean()
    k = LAT * LON - 3  # all: theirs takes a randomized PCA first
    options: Any = {"n_modes": k, "n_pca_modes": k, "use_coslat": True, "solver": "full"}
    theirs = POP(use_pca=True, pca_init_rank_reduction=1.0, **options)
    theirs.fit(anomalies, dim="time")
    whole = PCA(k, weights="coslat", remove="month", svd_solver="gram", progress=False)
    whole.fit(field(), dim="time")
    pops, values = oscillation_patterns(whole), theirs.eigenvalues().values
    for i, value in enumerate(pops.eigenvalues):  # their components are times std(z)
        j = int(np.argmin(np.abs(values - value)))
        close(value, values[j])
        close(pops.decay_times[i], theirs.damping_times().values[j])
        close(pops.periods[i], theirs.periods().values[j])
        pattern = theirs.components().isel(mode=j).transpose("lat", "lon").values.ravel()[3:]
        mine = pops.components[i, 3:]
        close(abs(np.vdot(mine, pattern)), np.linalg.norm(pattern))
        z = theirs.scores().isel(mode=j).values.conj()  # theirs: rows ~ Re(conj(z) pattern)
        state = np.real(np.outer(z, pattern))
        close(state / np.std(z), np.real(np.outer(pops.scores[:, i], mine)))
    opa = OPA(tau_max=24, **options)
    opa.fit(anomalies, dim="time")
    found = persistent_patterns(whole, 24)
    times = found.decorrelation_times  # theirs are moduli
    close(-np.sort(-np.abs(times)), opa.decorrelation_time().values)
    weighted = found.patterns.reshape(k, LAT, LON) * np.sqrt(np.cos(np.deg2rad(LATS)))[:, None]
    pattern = opa.components().transpose("mode", "lat", "lon").values
    for mine, other in zip(weighted[:4], pattern[:4], strict=True):
        unit = [one.ravel()[3:] / np.linalg.norm(one.ravel()[3:]) for one in (mine, other)]
        close(unit[0] * np.sign(unit[0] @ unit[1]), unit[1])


def test_a_planted_wave_and_a_persistent_pattern_are_found() -> None:
    rng, place = np.random.default_rng(1), np.linspace(0, 4, 20)
    n, z = 6000, np.zeros(6000, complex)
    for t in range(1, n):
        z[t] = 0.97 * np.exp(2j * np.pi / 30) * z[t - 1] + rng.standard_normal()
    wave = np.real(z[:, None] * np.exp(-1j * place))
    x = wave + 0.3 * rng.standard_normal((n, 20))
    fitted = PCA(4, progress=False).fit(x)
    pops = oscillation_patterns(fitted, scores=fitted.transform(x))
    assert abs(pops.periods[0] / 30 - 1) < 0.03
    assert abs(pops.decay_times[0] * -np.log(0.97) - 1) < 0.15
    assert abs(np.vdot(pops.components[0], np.exp(-1j * place))) > 0.99 * np.sqrt(20)
    np.testing.assert_array_less(np.diff(np.unwrap(pops.phase[0])), 0)  # it travels to the right
    slow = np.sin(3 * place)
    x = red(n, 1, 0.98, rng) * slow + 2 * red(n, 3, 0.5, rng) @ rng.standard_normal((3, 20))
    x += 0.3 * rng.standard_normal((n, 20))
    fitted = PCA(6, progress=False).fit(x)
    opps = persistent_patterns(fitted, 150, scores=fitted.transform(x))
    assert abs(np.corrcoef(opps.patterns[0], slow)[0, 1]) > 0.99
    assert abs(opps.decorrelation_times[0] / (0.5 * 1.98 / 0.02) - 1) < 0.2  # of AR(1), endless


def winters(x: xr.DataArray) -> xr.DataArray:
    return x.isel(time=x.time.dt.season.values == "DJF").isel(time=slice(2, -1))


def within(rows: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows in runs of 3."""
    keep = np.arange(len(rows)) % 3 < 3 - lag
    return rows[keep], rows[np.flatnonzero(keep) + lag]


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_pairs_reach_across_no_gap(calendar: str) -> None:
    x = winters(field())
    if calendar != "standard":
        x = x.convert_calendar(calendar)
    fitted = PCA(3, svd_solver="gram", progress=False).fit(x, dim="time")
    pcs = np.asarray(fitted.eof_.pcs())
    first, second = within(pcs, 1)
    values = np.linalg.eigvals(second.T @ first @ np.linalg.inv(first.T @ first))
    pops = oscillation_patterns(fitted)
    assert pops.n_pairs == len(first) == len(x) // 3 * 2
    close(pops.eigenvalues, pick(values, pops.eigenvalues))
    first, second = within(pcs, 2)
    c = [pcs.T @ pcs / (len(pcs) - 1)]
    c += [a.T @ b / (len(a) - 1) for a, b in (within(pcs, 1), within(pcs, 2))]
    m = c[0] / 2 + c[1] + c[2] / 2
    times = scipy.linalg.eigh((m + m.T) / 2, c[0], eigvals_only=True)
    close(persistent_patterns(fitted, 2).decorrelation_times, times[::-1])
    with pytest.raises(InvalidInputError, match="0 pairs of samples are 5 steps"):
        oscillation_patterns(fitted, lag=5)


def pick(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values[[int(np.argmin(np.abs(values - one))) for one in like]]


def test_members_and_empty_samples() -> None:
    rng = np.random.default_rng(2)
    x = xr.DataArray(red(300, 8, 0.7, rng).reshape(3, 100, 8), dims=("member", "time", "lon"))
    x = x.assign_coords(lon=np.arange(8.0), time=np.arange(100))
    for array in (x, x.transpose("time", "member", "lon")):
        dims = list(array.dims[:2])
        fitted = PCA(3, svd_solver="gram", progress=False).fit(array, dim=dims)
        pcs = fitted.eof_.pcs().transpose("member", "time", "component").values
        first, second = pcs[:, :-1].reshape(-1, 3), pcs[:, 1:].reshape(-1, 3)
        values = np.linalg.eigvals(second.T @ first @ np.linalg.inv(first.T @ first))
        pops = oscillation_patterns(fitted)
        assert pops.n_pairs == 3 * 99
        close(pops.eigenvalues, pick(values, pops.eigenvalues))
        assert set(pops.to_xarray().scores.dims) == {"member", "time", "component"}
    one = x.isel(member=0, drop=True)
    holes = one.where(one.time != 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = PCA(3, svd_solver="gram", progress=False).fit(holes, dim="time")
    pops = oscillation_patterns(fitted)
    assert pops.n_pairs == 97
    assert np.isnan(pops.scores[40]).all()


def test_labelled_results() -> None:
    pops, opps = pops_of(lag=2).to_xarray(), opps_of(12).to_xarray()
    assert pops.amplitude.dims == opps.patterns.dims == ("component", "lat", "lon")
    assert pops.patterns.attrs["units"] == opps.patterns.attrs["units"] == "K"
    np.testing.assert_array_equal(np.isnan(opps.patterns[:, 0, :3]), True)
    np.testing.assert_array_equal(pops.scores.time, field().time)


def test_what_cannot_be_answered_is_refused() -> None:
    x = np.random.default_rng(0).standard_normal((40, 4))
    gram: Any = {"svd_solver": "gram", "progress": False}
    fitted = PCA(3, **gram).fit(x)
    for call in (oscillation_patterns, lambda one, **k: persistent_patterns(one, 3, **k)):
        with pytest.raises(InvalidInputError, match=r"expected EOFs, not a varimax"):
            call(streampca.rotate(fitted))
        with pytest.raises(InvalidInputError, match=r"scores of 7 rows.*40 samples"):
            call(fitted, scores=fitted.transform(x[:7]))
        with pytest.raises(InvalidInputError, match=r"k=9; expected None or a number from 1 to 3"):
            call(fitted, k=9)
        with pytest.raises(InvalidInputError, match=r"expected a fitted model: "):
            call(x)
        for times, words in (
            (np.arange(40)[::-1], "times do not increase: 39 is followed by 38.*sortby"),
            (np.arange(40) ** 1.5, "not evenly spaced"),
        ):
            rows = xr.DataArray(x, {"time": times}, ("time", "x"))
            with pytest.raises(InvalidInputError, match=words):
                call(PCA(2, **gram).fit(rows, dim="time"))
        stacked = xr.DataArray(x.reshape(8, 5, 4), dims=("a", "b", "x"))
        with pytest.raises(InvalidInputError, match=r"X\.rename\(\{'b': 'time'\}\)"):
            call(PCA(2, **gram).fit(stacked, dim=["a", "b"]))
    with pytest.raises(InvalidInputError, match="lag=0"):
        oscillation_patterns(fitted, lag=0)
    with pytest.raises(InvalidInputError, match="coefficients='x'"):
        oscillation_patterns(fitted, coefficients="x")
    with pytest.raises(InvalidInputError, match="1 pairs of samples are 39 steps"):
        persistent_patterns(fitted, 39)
