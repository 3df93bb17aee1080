"""Parameters that several estimators share."""

from __future__ import annotations

from typing import Any

from streampca.models.contract.parameters import Kept, parameter


def accepted(default: Any, why: str) -> Any:
    """A parameter of scikit-learn's that cannot change what is computed here."""
    meaning = f"accepted for scikit-learn: {why}."
    return parameter(default=default, meaning=meaning, kept=Kept.NOT, process=True, inert=True)


WHITEN = parameter(
    default=False,
    meaning="""divide the scores by the standard deviation of their component; components after the
        rank have none, and their scores are 0.""",
)
SOLVER = parameter(
    default="auto",
    meaning=""""auto", "scatter" (p x p, samples streamed), "tsqr" (R factor; singular values to
        1e-14 of the largest, where scatter and Gram resolve about 1e-8 in float64 and 3e-4
        in float32), "gram" (n x n), "randomized" (block Krylov, for both n and p large: a
        few passes, and a certificate that says how far each component can be off) or
        "sketch" (one look at samples that cannot be read again, approximate, with a bound
        of its error). scikit-learn's "covariance_eigh" and "full" mean "scatter" and "tsqr";
        "arpack" is "auto" where tol 0 means 1e-9 and iterations go on, as ARPACK does.
        "randomized" without a number of components is "auto".
        "auto" takes an exact solver that is predicted to take .2 s,
        10 s and 4 times the iterative one, or 1.25 times that
        (``models.decompose.routes.AFFORDABLE``). Else it iterates, and goes over to an exact solver
        of 2 minutes, or 4 times the iterative one (``GO_OVER``), where a component cannot
        be certified in .3 of its time. ``tol``, ``max_passes`` or
        ``iterated_power`` mean "iterate", and the latter two that it ends there. ``plan(X)``
        shows what is taken.""",
)


def other_name(name: str) -> Any:
    """A parameter under scikit-learn's name."""
    return parameter(
        default=None, meaning=f"scikit-learn's name of ``{name}``: one of them is set."
    )


COPY = accepted(True, "X is never written to")
POWER_ITERATION_NORMALIZER = accepted("auto", "each step makes its vectors orthonormal")
N_OVERSAMPLES = parameter(
    default=10,
    meaning="""least number of vectors beside n_components in a step of "randomized", which takes
        half as many as n_components, and fills a multiple of 16, where that is more.""",
)
TOL = parameter(
    default=None,
    meaning="""radians, 1e-4 where None or 0, scikit-learn's default; "randomized" stops when the
        angle of every component is certified to it.""",
)
CENTER = parameter(default=True, meaning="subtract column means.")
SCALE = parameter(
    default=None,
    choices=(None, "std"),
    meaning="""None, or "std": divide columns by their standard deviation; constant ones
        become 0.""",
)
DDOF = parameter(default=1, meaning="variances divide by n - ddof.")
WEIGHTS = parameter(
    default=None,
    kept=Kept.NAME,
    needs_data=True,
    meaning="""(p,) multiply the centred and scaled features (an array, or a DataArray over some of
        their dimensions, or the name of a column of the features: var of an AnnData, a
        coordinate, a variable of the Dataset), or "coslat": sqrt(cos(latitude)), so that
        the cells of a grid count by their area; or "area": the roots of the areas of the
        cells, areacella or what cell_measures names. Of several variables one for each, by its
        name: ``{"sst": 2.0, "slp": "coslat"}``. A list of such is their product:
        ``["coslat", variable_weights(X, weights="coslat")]``. ``components_`` are those of
        the weighted data; ``inverse_transform`` divides by the weights again. A feature of
        weight 0 is left out: its loadings are 0, and its reconstruction is its mean. NaN and
        negative weights are refused.""",
)
REMOVE = parameter(
    default=None,
    kept=Kept.NAME,
    needs_data=True,
    meaning="""what is projected out of the samples beside the mean, in the same pass: a cycle
        in the dates of the samples ("month", "season", "quarter", "week", "dayofyear",
        "dayofweek", "hour"), "trend" (a straight line in their coordinate), an (n,) or (n, c)
        array, data frame or DataArray of covariates or batches (text makes one column for
        each level, and so do whole numbers under the name of a cycle: ``x["time.hour"]``),
        the name of a column of the samples (obs of an AnnData, a coordinate, a variable
        beside X), or a list of such. The
        components, ``scale="std"`` and the shares of variance are those of the residuals;
        variances still divide by n - ddof, as for anomalies made beforehand. Columns that
        repeat each other count once. A hole (missing="mean") holds what the observed
        samples of its feature say; that takes solver="gram". ``transform`` needs the
        arrays of new rows, not their cycles and trends; columns that were named are those
        of the same name. ``result_.removed_coefficients`` (c, p) of the columns
        ``result_.design.names``.""",
)
RANDOM_STATE = parameter(
    default=0,
    meaning="""seed of random starts; a numpy.random.Generator or RandomState, or None, gives one
        (``result_.settings`` has the seed that was used).""",
)
RATES = parameter(
    default=None,
    kept=Kept.NOT,
    process=True,
    meaning="""speeds by which "auto" orders its candidates: None (those shipped), or the file that
        ``streampca calibrate`` wrote for this machine.""",
)
WARM_START = parameter(
    default=False,
    kept=Kept.NOT,
    process=True,
    meaning="""keep in memory what the fit accumulated. Fitting the same data again with another
        ``n_components`` then reads nothing but what new loadings need, and "randomized"
        goes on from the space that it had searched.""",
)
