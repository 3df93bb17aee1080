"""The axis of components in labelled results, and its name: "component", or "mode"."""

from __future__ import annotations

from typing import Any, Self

from streampca.errors import InvalidInputError
from streampca.matrix.labels import AxisLabels

COMPONENT = "component"
NAMES = (COMPONENT, "mode", "component_", "mode_")

_options: dict[str, str] = {"component_dim": COMPONENT}


class set_options:
    """Options of labelled results, from here on, or inside ``with``.

    component_dim : name of the dimension of components: "component" (the default), or "mode" as
        climate scientists call it. Where the data have a dimension of that name, the other one is
        used. Results are named when they are made; those of either name are taken as input.

    Raises InvalidInputError.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca
    >>> import xarray as xr
    >>> sst = xr.DataArray(np.random.default_rng(0).normal(size=(9, 2, 2)), dims=['time', 'y', 'x'])
    >>> with streampca.set_options(component_dim='mode'):
    ...     streampca.PCA(2, progress=False).fit(sst).result_.to_xarray().components.dims
    ('mode', 'y', 'x')
    """

    def __init__(self, *, component_dim: str = COMPONENT) -> None:
        if component_dim not in NAMES[:2]:
            raise InvalidInputError(
                f"component_dim={component_dim!r}; expected one of {NAMES[:2]}. Any other name: "
                "model.result_.to_xarray().rename(component='pc')"
            )
        self._before = dict(_options)
        _options["component_dim"] = component_dim

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        _options.update(self._before)


def component_axis(k: int, *axes: AxisLabels) -> AxisLabels:
    """The axis of k components, numbered from 1.  axes : of the data, whose names it avoids."""
    taken = {dim for axis in axes for part in [axis, *axis.parts.values()] for dim in part.dims}
    for axis in axes:
        taken |= {*axis.extra, *axis.grids}
    wanted = (_options["component_dim"], *NAMES)
    return AxisLabels.plain(next(n for n in wanted if n not in taken), k, list(range(1, k + 1)))


def by_own_name(values: Any, component: AxisLabels) -> Any:
    """A DataArray whose components have the other name, with that of this axis."""
    (dim,) = component.dims
    last = next((n for n in NAMES if n in values.dims and values.sizes[n] == len(component)), dim)
    return values if dim in values.dims or last == dim else values.rename({last: dim})
