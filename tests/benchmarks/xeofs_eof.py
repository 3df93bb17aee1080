"""``xeofs.single.EOF`` by :class:`streampca.PCA`: a thin adapter, for xeofs' own tests of it."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr

import streampca
from streampca import PCA

KINDS = {"DataArray": xr.DataArray, "Dataset": xr.Dataset, "list": list}


class Held(dict[str, Any]):
    """What xeofs' tests look up beside the arrays: all of them are kept."""

    @property
    def _allow_compute(self) -> dict[str, bool]:
        return dict.fromkeys(self, True)


def _together(X: Any) -> Any:
    """A list of arrays as one Dataset."""
    return xr.Dataset({str(i): one for i, one in enumerate(X)}) if isinstance(X, list) else X


class EOF:
    """Modes count from 1 along ``mode``; scores are normalised by their singular value."""

    def __init__(self, n_modes: int = 2, **params: Any) -> None:
        known = {
            "center": True,
            "standardize": False,
            "use_coslat": False,
            "solver": "auto",
            "check_nans": True,
            "compute": True,
        }
        kwargs = copy.copy(params.pop("solver_kwargs", None)) or {}
        self._params = {"n_modes": n_modes, **known, **params, "solver_kwargs": kwargs}
        self.preprocessor: Any = None
        self.data = Held()

    def get_params(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return self._params

    def fit(self, X: Any, dim: Any) -> Self:
        """Time steps, or other samples, without any value are left out, and NaN in the scores."""
        self.preprocessor = (type(X), (dim,) if isinstance(dim, str) else tuple(dim))
        named = _together(X)
        used = self._filled_samples(named)
        count = min(self._params["n_modes"], *streampca.open(used, dim=self.dims).shape)
        params = self._params
        self.model = PCA(
            count,
            center=params["center"],
            scale="std" if params["standardize"] else None,
            weights="coslat" if params["use_coslat"] else None,
        ).fit(used, dim=self.dims)
        empty = {name: named[name] for name in self.dims if name in named.coords}
        self.data["scores"] = self._told(self.model.transform(used)).reindex(empty)
        return self

    @property
    def dims(self) -> tuple[Hashable, ...]:
        """Of the samples."""
        return self.preprocessor[1]

    def _filled_samples(self, X: Any) -> Any:
        for name in self.dims:
            X = X.dropna(name, how="all")
        return X

    def _told(self, scores: Any) -> Any:
        return scores.rename(component="mode").rename("scores")

    def _series(self, values: Any, name: str) -> Any:
        modes = np.arange(1, len(values) + 1)
        return xr.DataArray(values, dims="mode", coords={"mode": modes}, name=name)

    def singular_values(self) -> Any:
        """(mode,)."""
        return self._series(self.model.singular_values_, "singular_values")

    def explained_variance(self) -> Any:
        """(mode,)."""
        return self._series(self.model.explained_variance_, "explained_variance")

    def explained_variance_ratio(self) -> Any:
        """(mode,)."""
        return self._series(self.model.explained_variance_ratio_, "explained_variance_ratio")

    def components(self) -> Any:
        """As the kind of object that was fitted."""
        found = self.model.result_.to_xarray().rename(component="mode")
        kind = self.preprocessor[0]
        if kind is xr.DataArray:
            return found["components"]
        names = [str(name) for name in found if str(name).startswith("components_")]
        parts = {name.removeprefix("components_"): found[name] for name in names}
        return list(parts.values()) if kind is list else xr.Dataset(parts)

    def scores(self, normalized: bool = True) -> Any:
        """(samples, mode)."""
        scores = self.data["scores"]
        return scores / self.singular_values() if normalized else scores

    def transform(self, X: Any, normalized: bool = True) -> Any:
        """Scores of other fields."""
        scores = self._told(self.model.transform(self._filled_samples(_together(X))))
        return (scores / self.singular_values()).rename("scores") if normalized else scores

    def inverse_transform(self, scores: Any, normalized: bool = True) -> Any:
        """The field of one, some or all modes."""
        scores = scores.expand_dims("mode") if "mode" not in scores.dims else scores
        if normalized:
            scores = scores * self.singular_values()
        whole = scores.reindex(mode=self.singular_values().mode, fill_value=0.0)
        whole = whole.rename(mode="component").transpose(..., "component")
        return self.model.inverse_transform(whole)

    def save(self, path: Any, engine: str = "zarr") -> None:
        """The model as streampca saves it, and the scores, whatever ``engine`` says."""
        Path(path).mkdir()
        self.model.save(Path(path) / "model")
        self.data["scores"].to_zarr(Path(path) / "scores.zarr")
        kind, dims = self.preprocessor
        told = {"params": self._params, "kind": kind.__name__, "dims": dims}
        (Path(path) / "eof.json").write_text(json.dumps(told))

    @classmethod
    def load(cls, path: Any, engine: str = "zarr") -> Self:
        """What ``save`` wrote."""
        told = json.loads((Path(path) / "eof.json").read_text())
        made = cls(**told["params"])
        made.preprocessor = (KINDS[told["kind"]], tuple(told["dims"]))
        made.model = streampca.load(Path(path) / "model")
        with xr.open_dataarray(Path(path) / "scores.zarr", engine="zarr") as scores:
            made.data["scores"] = scores.load()
        return made

    def serialize(self) -> dict[str, bytes]:
        """The files that ``save`` writes."""
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "eof")
            files = [one for one in Path(folder).rglob("*") if one.is_file()]
            return {str(one.relative_to(folder)): one.read_bytes() for one in files}

    @classmethod
    def deserialize(cls, files: dict[str, bytes]) -> Self:
        """What ``serialize`` gave."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                place = Path(folder) / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            return cls.load(Path(folder) / "eof")
