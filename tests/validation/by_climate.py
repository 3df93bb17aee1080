"""Beside eofs and xeofs: EOFs and their relatives of a field with land, by latitude."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import streampca
from tests.validation.comparing import Pairs, compared, turned, unit

ERSST = "ERSSTv5 2010-2019, tropical Pacific, 120 x 21 x 86"
OTHER = "ERSSTv5 2010-2019, tropical Atlantic and Pacific"


def months(folder: Path) -> xr.DataArray:
    with xr.open_dataset(folder / "climate" / "sst.mnmean.nc") as dataset:
        return dataset.sst.sel(time=slice("2010", "2019")).load().astype("f8")


def pacific(folder: Path) -> xr.DataArray:
    return months(folder).sel(lat=slice(20, -20), lon=slice(120, 290))


def atlantic(folder: Path) -> xr.DataArray:
    return months(folder).sel(lat=slice(20, -20), lon=slice(300, 358))


def anomalies(field: xr.DataArray) -> xr.DataArray:
    return field.groupby("time.month") - field.groupby("time.month").mean()


def flat(maps: Any, first: str = "mode") -> np.ndarray:
    """(features, modes)"""
    values = maps.transpose(first, ...).values
    return np.asarray(values.reshape(len(values), -1).T)


def eofs_of(field: xr.DataArray, k: int = 4, **more: Any) -> Any:
    model = streampca.PCA(k, weights="coslat", remove="month", **more)
    return model.fit(field, dim="time")


@compared(
    "eofs",
    "xarray.Eof",
    ERSST,
    'PCA(4, weights="coslat", remove="month")',
    "eigenvalues, EOFs, PCs, North's errors",
    1e-5,
)
def eof_of_eofs(folder: Path) -> Pairs:
    from eofs.xarray import Eof

    field = pacific(folder)
    weights = np.sqrt(np.cos(np.deg2rad(field.lat))).values[:, None]
    theirs = Eof(anomalies(field), weights=weights)
    model = eofs_of(field)
    yield model.eof_.eigenvalues(), theirs.eigenvalues(4).values
    yield model.eof_.north_errors(), theirs.northTest(4).values
    yield turned(flat(model.eof_.eofs(), "component"), flat(theirs.eofs(neofs=4)))
    yield turned(model.eof_.pcs(), theirs.pcs(npcs=4).values)


@compared(
    "xeofs",
    "single.EOF",
    ERSST,
    'PCA(4, weights="coslat", remove="month")',
    "variances, shares, scores",
    1e-5,
)
def eof_of_xeofs(folder: Path) -> Pairs:
    from xeofs.single import EOF

    field = pacific(folder)
    theirs = EOF(n_modes=4, use_coslat=True, solver="full").fit(anomalies(field), dim="time")
    model = eofs_of(field)
    yield model.explained_variance_, theirs.explained_variance().values
    yield model.explained_variance_ratio_, theirs.explained_variance_ratio().values
    yield turned(unit(model.transform(field)), unit(theirs.scores().transpose("time", "mode")))


@compared(
    "xeofs",
    "single.EOFRotator",
    ERSST,
    'rotate(PCA(4, weights="coslat", remove="month"), "varimax")',
    "variances, scores",
    1e-4,
    "each stops by a tolerance of its own",
)
def rotated_eof(folder: Path) -> Pairs:
    from xeofs.single import EOF, EOFRotator

    field = pacific(folder)
    theirs = EOF(n_modes=4, use_coslat=True, solver="full").fit(anomalies(field), dim="time")
    turn = EOFRotator(n_modes=4, power=1, rtol=1e-12, max_iter=10_000).fit(theirs)
    model = streampca.rotate(eofs_of(field), "varimax")
    yield model.explained_variance_, turn.explained_variance().values
    yield turned(unit(model.transform(field)), unit(turn.scores().transpose("time", "mode")))


@compared(
    "xeofs",
    "single.HilbertEOF",
    ERSST,
    'ComplexEOF(2).fit(analytic(field, padding="exp"))',
    "shares, amplitudes of the maps and of the scores",
    1e-5,
)
def hilbert_eof(folder: Path) -> Pairs:
    from xeofs.single import HilbertEOF

    field = anomalies(pacific(folder)).isel(lon=slice(20, 60)).fillna(0.0)
    theirs: Any = HilbertEOF(n_modes=2, padding="exp", solver="full")
    theirs.fit(field, dim="time")
    matrix = streampca.analytic(field, padding="exp", dim="time")
    model = streampca.ComplexEOF(2, solver="gram").fit(matrix)
    found = model.result_.to_xarray()
    yield found.explained_variance_ratio.values, theirs.explained_variance_ratio().values
    yield flat(found.amplitude, "component"), flat(theirs.components_amplitude().sel(lat=field.lat))
    yield found.score_amplitude.values, theirs.scores_amplitude(normalized=False).T.values


@compared(
    "xeofs",
    "single.ExtendedEOF",
    ERSST,
    "PCA(3).fit(lagged(field, (0, -3, -6)))",
    "variances, maps at every lag",
    1e-5,
)
def extended_eof(folder: Path) -> Pairs:
    from xeofs.single import ExtendedEOF

    field = anomalies(pacific(folder)).isel(lon=slice(20, 60)).fillna(0.0)
    theirs = ExtendedEOF(n_modes=3, tau=3, embedding=3, solver="full").fit(field, dim="time")
    model = streampca.PCA(3).fit(streampca.lagged(field, (0, -3, -6), dim="time"))
    yield model.explained_variance_, theirs.explained_variance().values
    maps = theirs.components().transpose("mode", "embedding", "lat", "lon").sel(lat=field.lat)
    yield turned(flat(model.result_.to_xarray().components, "component"), flat(maps))


@compared(
    "xeofs",
    "cross.MCA",
    OTHER,
    'MCA(3, weights=("coslat", "coslat"), remove="month")',
    "singular values, scores of both",
    1e-5,
)
def mca(folder: Path) -> Pairs:
    from xeofs.cross import MCA

    x, y = pacific(folder), atlantic(folder)
    theirs = MCA(n_modes=3, use_coslat=True, use_pca=False, solver="full")
    theirs.fit(anomalies(x), anomalies(y), dim="time")
    model = streampca.MCA(3, weights=("coslat", "coslat"), remove="month").fit(x, y, dim="time")
    yield model.singular_values_, theirs.data["singular_values"].values
    for ours, other in zip(model.transform(x, y), theirs.scores(), strict=True):
        yield turned(unit(ours), unit(other.transpose("time", "mode")))


@compared(
    "xeofs",
    "cross.CPCCA",
    OTHER,
    "CPCCA(3, alpha=0.4, pca=(10, 10))",
    "singular values, scores of both",
    1e-5,
    "xeofs whitens by covariances over n: its values are multiplied by (n - 1) / n to the .6",
)
def cpcca(folder: Path) -> Pairs:
    from xeofs.cross import CPCCA

    x, y = pacific(folder), atlantic(folder)
    theirs: Any = CPCCA(
        n_modes=3,
        alpha=0.4,
        use_coslat=True,
        n_pca_modes=10,
        pca_init_rank_reduction=1.0,
        solver="full",
    )
    theirs.fit(anomalies(x), anomalies(y), dim="time")
    options: Any = {"pca": (10, 10), "weights": ("coslat", "coslat"), "remove": "month"}
    model = streampca.CPCCA(3, alpha=0.4, **options).fit(x, y, dim="time")
    n = x.sizes["time"]
    yield model.singular_values_, theirs.data["singular_values"].values * ((n - 1) / n) ** 0.6
    for ours, other in zip(model.transform(x, y), theirs.scores(), strict=True):
        yield turned(unit(ours), unit(other.transpose("time", "mode")))


@compared(
    "xeofs", "single.POP", ERSST, "oscillation_patterns(PCA(6))", "periods and decay times", 1e-5
)
def pop(folder: Path) -> Pairs:
    from xeofs.single import POP

    field = pacific(folder)
    options: Any = {"use_pca": True, "pca_init_rank_reduction": 1.0, "use_coslat": True}
    theirs = POP(n_modes=6, n_pca_modes=6, solver="full", **options)
    theirs.fit(anomalies(field), dim="time")
    model = eofs_of(field, 6)
    found = streampca.oscillation_patterns(model)
    order = np.argsort(theirs.damping_times().values)[::-1]
    mine = np.argsort(found.decay_times)[::-1]
    # of each pair both or only the first may be listed
    yield (
        np.unique(found.decay_times[mine].round(9)),
        np.unique(theirs.damping_times().values[order].round(9)),
    )


@compared(
    "xeofs",
    "single.OPA",
    ERSST,
    "persistent_patterns(PCA(6), 24)",
    "decorrelation times",
    1e-5,
    "xeofs gives their moduli",
)
def opa(folder: Path) -> Pairs:
    from xeofs.single import OPA

    field = pacific(folder)
    theirs: Any = OPA(n_modes=6, n_pca_modes=6, tau_max=24, use_coslat=True, solver="full")
    theirs.fit(anomalies(field), dim="time")
    times = streampca.persistent_patterns(eofs_of(field, 6), 24).decorrelation_times
    yield np.sort(abs(times))[::-1], theirs.decorrelation_time().values


def currents(folder: Path) -> xr.DataArray:
    """A complex field: gradients of temperature to the east and to the north."""
    field = anomalies(pacific(folder)).isel(lon=slice(20, 60)).fillna(0.0)
    return field.differentiate("lon") + 1j * field.differentiate("lat")


@compared(
    "xeofs",
    "single.ComplexEOF",
    ERSST,
    'ComplexEOF(3, weights="coslat")',
    "variances, shares, amplitudes of the scores",
    1e-5,
)
def complex_eof(folder: Path) -> Pairs:
    from xeofs.single import ComplexEOF

    field = currents(folder)
    theirs: Any = ComplexEOF(n_modes=3, use_coslat=True, solver="full").fit(field, dim="time")
    model = streampca.ComplexEOF(3, weights="coslat", solver="gram").fit(field, dim="time")
    yield model.explained_variance_, theirs.explained_variance().values
    yield model.explained_variance_ratio_, theirs.explained_variance_ratio().values
    scores = theirs.scores_amplitude(normalized=False).transpose("time", "mode")
    yield model.result_.to_xarray().score_amplitude.values, scores.values


@compared(
    "xeofs",
    "cross.MCARotator",
    OTHER,
    'rotate(MCA(3), "varimax")',
    "singular values, scores of both",
    1e-4,
    "each stops by a tolerance of its own",
)
def rotated_mca(folder: Path) -> Pairs:
    from xeofs.cross import MCA, MCARotator

    x, y = pacific(folder), atlantic(folder)
    base = MCA(n_modes=3, use_coslat=True, use_pca=False, solver="full")
    base.fit(anomalies(x), anomalies(y), dim="time")
    theirs: Any = MCARotator(n_modes=3, power=1, rtol=1e-12, max_iter=10_000).fit(base)
    model = streampca.MCA(3, weights=("coslat", "coslat"), remove="month").fit(x, y, dim="time")
    found = streampca.rotate(model, "varimax")
    yield found.singular_values_, np.sqrt(theirs.data["squared_covariance"].values)
    for ours, other in zip(found.transform(x, y), theirs.scores(), strict=True):
        yield turned(unit(ours), unit(other.transpose("time", "mode")))


@compared(
    "xeofs",
    "multi.CCA",
    OTHER + ", Indian Ocean",
    "MultisetCCA(2, pca=0.9, alpha=3 / 7)",
    "eigenvalues, scores of all three",
    1e-5,
    "xeofs writes the penalty as c = .3: its eigenvalues are multiplied by 1 - c",
)
def multiset_cca(folder: Path) -> Pairs:
    from xeofs import multi

    indian = months(folder).sel(lat=slice(20, -20), lon=slice(50, 96))
    fields = [anomalies(one) for one in (pacific(folder), atlantic(folder), indian)]
    options: Any = {"pca": True, "variance_fraction": 0.9, "init_pca_modes": 1.0, "c": 0.3}
    theirs: Any = multi.CCA(n_modes=2, use_coslat=True, **options).fit(fields, dim="time")
    model = streampca.MultisetCCA(2, pca=0.9, alpha=3 / 7, weights="coslat").fit(fields, dim="time")
    yield model.values_, np.asarray(theirs.eigvals) * 0.7
    for name, other in zip(model.result_.names, theirs.scores(), strict=True):
        yield turned(
            unit(model.result_.scores_of_view(name)), unit(other.transpose("time", "mode"))
        )


@compared(
    "xeofs",
    "cross.HilbertCPCCA",
    OTHER,
    "ComplexCPCCA(2, alpha=1).fit(analytic(x), analytic(y))",
    "singular values, amplitudes of the scores of both",
    1e-5,
)
def complex_cpcca(folder: Path) -> Pairs:
    from xeofs.cross import HilbertCPCCA

    fields = [anomalies(one).fillna(0.0) for one in (pacific(folder), atlantic(folder))]
    options: Any = {"use_coslat": True, "use_pca": False, "solver": "full"}
    theirs: Any = HilbertCPCCA(n_modes=2, alpha=1.0, **options).fit(*fields, dim="time")
    signals = [streampca.analytic(one, dim="time") for one in fields]
    model = streampca.ComplexCPCCA(2, alpha=1, weights="coslat").fit(*signals)
    yield model.singular_values_, theirs.data["singular_values"].values
    for ours, other in zip((model.result_.x, model.result_.y), theirs.scores(), strict=True):
        yield abs(ours.scores), abs(other.transpose("time", "mode").values)


@compared(
    "xeofs",
    "single.GWPCA",
    "ERSSTv5 2010-2019, 21 x 20 cells of the tropical Pacific, 12 monthly means",
    'local_components(field, 2, bandwidth=12, metric="euclidean")',
    "variances and shares in each place",
    1e-5,
)
def local_pca(folder: Path) -> Pairs:
    from xeofs.single import GWPCA

    field = pacific(folder).isel(lon=slice(30, 50)).groupby("time.month").mean()
    field = field.rename(lat="y", lon="x").transpose("month", "x", "y")
    where: Any = {"metric": "euclidean", "bandwidth": 12.0}
    theirs = GWPCA(2, kernel="bisquare", **where).fit(field, dim=("x", "y"))
    found = streampca.local_components(field, 2, dim=("x", "y"), **where).to_xarray()
    for name in ("explained_variance", "explained_variance_ratio"):
        other = getattr(theirs, name)().rename(mode="component").transpose("x", "y", "component")
        mine = found[name].transpose("x", "y", "component").sel(x=other.x, y=other.y)
        yield mine.values, other.values
