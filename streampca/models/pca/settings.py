"""What the parameters of a PCA may be, and which of them contradict each other."""

from __future__ import annotations

from typing import Any

from streampca.errors import InvalidInputError
from streampca.models.fitted import standardization
from streampca.models.iteration import iteration_limits
from streampca.solvers import check_n_components


def check_settings(
    settings: dict[str, Any], shape: tuple[int, int], least: int = 1
) -> dict[str, Any]:
    """The settings; refuse those that no data, or no data of this shape, can meet.

    least : components that may be asked.
    """
    n, p = shape
    settings = iteration_limits(settings)
    if settings["missing"] not in ("raise", "mean"):
        raise InvalidInputError(
            f"missing={settings['missing']!r}; expected 'raise' or 'mean' (PCA: or 'impute')"
        )
    if settings.get("remove") is not None and not settings["center"]:
        raise InvalidInputError("remove= needs center=True: the mean goes with what is removed")
    if settings["missing"] == "mean" and not settings["center"]:
        raise InvalidInputError("missing='mean' needs center=True: holes hold the mean, 0 after it")
    standardization(settings)
    ddof = settings["ddof"]
    check_n_components(settings["n_components"], n, p, least)
    if n - ddof <= 0:
        raise InvalidInputError(
            f"n_samples={n} with ddof={ddof} leaves no degree of freedom: expected at least "
            f"{ddof + 1} samples (got 1 sample)"
            if n == 1
            else f"n_samples={n} with ddof={ddof} leaves no degree of freedom"
        )
    return settings
