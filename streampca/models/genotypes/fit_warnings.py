"""What a genotype fit warns of: relatives among the samples, components of one short region."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from streampca.errors import LocalComponentWarning, NonFounderWarning
from streampca.matrix import AxisLabels
from streampca.models.local_loadings import local_columns
from streampca.sources.variants import NO_PARENT


def warn_of_local_components(columns: Any, variants: AxisLabels) -> None:
    """Name the components that one short region makes.

    columns : (p, k) unit columns, an array or one in Zarr; None = there are none.
    """
    if columns is None or "position" not in variants.extra:
        return
    found = local_columns(columns, variants.extra["chromosome"], variants.extra["position"])
    if found:
        warnings.warn(
            f"{'; '.join(map(str, found))}: likely linkage disequilibrium or an inversion, not "
            "ancestry. Prune (streampca.prune_ld; --ld-r2) or leave such regions out "
            "(VariantFilter(exclude_long_range_ld=37); --exclude-long-range-ld 37).",
            LocalComponentWarning,
            stacklevel=3,
        )


def warn_of_children(samples: AxisLabels) -> None:
    """Tell of samples whose parents are both among them."""
    names = ("family", "individual", "father", "mother")
    if not set(names) <= set(samples.extra):
        return
    family, individual, father, mother = (np.asarray(samples.extra[c]).tolist() for c in names)
    there = set(zip(family, individual, strict=True))
    children = sum(
        NO_PARENT not in (f, m) and (home, f) in there and (home, m) in there
        for home, f, m in zip(family, father, mother, strict=True)
    )
    if children:
        warnings.warn(
            f"{children} of {len(samples)} samples have both parents in the data; PLINK would use "
            "founders only for frequencies, and relatives make components of their own: see "
            "fit_samples",
            NonFounderWarning,
            stacklevel=3,
        )
