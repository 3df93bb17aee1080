"""Rotated complex EOFs: varimax, quartimax and promax of complex loadings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from streampca.models.contract.registry import loaded
from streampca.models.eof.complex_eof import ComplexEOF, OfComplexRows
from streampca.models.eof.complex_result import ComplexDecomposition
from streampca.models.pca.rotated_pca import RotatedDecomposition, RotatedPCA
from streampca.models.results.decomposition import PrincipalComponents


@dataclass(frozen=True, repr=False, kw_only=True)
class RotatedComplexDecomposition(
    RotatedDecomposition, ComplexDecomposition, kind="rotated complex model"
):
    """Complex loadings turned by a unitary matrix (promax: another), as a
    :class:`RotatedDecomposition` of the squared moduli.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((60, 5, 2)) @ [1, 1j]
    >>> streampca.ComplexEOF(3).fit(x).result_.rotate("varimax", k=2).rotation.dtype
    dtype('complex128')
    """

    base_kind: ClassVar[type[PrincipalComponents]] = ComplexDecomposition

    @property
    def estimator(self) -> str:
        """The kind of estimator that this loads as."""
        return "RotatedComplexEOF"


@loaded
class RotatedComplexEOF(OfComplexRows, RotatedPCA):
    """:class:`ComplexEOF` whose first k components are rotated: see :class:`RotatedPCA`.

    pca : the :class:`ComplexEOF` that is fitted first.  Other parameters : as of RotatedPCA. The
    criteria are of squared moduli, so that the phase of a loading has no part in them.
    Cost: that of the fit, then no more reading; see ``solvers.rotation.varimax``.
    Source: Kaiser 1958, Psychometrika 23; Horel 1984, J. Climate Appl. Meteor. 23, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import ComplexEOF, RotatedComplexEOF, rotate
    >>> Z = np.random.default_rng(0).normal(size=(50, 4, 2)) @ [1, 1j]
    >>> model = RotatedComplexEOF(ComplexEOF(2)).fit(Z)
    >>> model.result_.rotation.shape, np.iscomplexobj(rotate(ComplexEOF(2).fit(Z)).components_)
    ((2, 2), True)
    """

    base_class: ClassVar[type[Any]] = ComplexEOF
