"""Sums of complex features, whose parts lie side by side: the real sums of paired vectors."""

from __future__ import annotations

import numpy as np

from streampca.accumulators.krylov import SubspaceStep
from streampca.accumulators.products import Gram
from streampca.kernels import Array, symmetrize


class PairedGram(Gram):
    """The Gram matrix of complex features, whose parts lie side by side: of the vectors [a; b].

    Of the real (2n, 2n) sum, blocks aa', ba' and bb', the complex one is
    ZZ^H = aa' + bb' + i(ba' - ab'): :meth:`hermitian`. As many flops as a complex product takes.
    """

    height = 2

    def _vectors(self, columns: Array) -> Array:
        return np.concatenate([columns[:, ::2], columns[:, 1::2]])

    def hermitian(self) -> Array:
        """(n, n) complex128, a fresh array."""
        lower = self.lower()
        n = len(lower) // 2
        total = np.tril(lower[:n, :n])
        total += np.tril(lower[n:, n:])
        found = symmetrize(total).astype(np.complex128)
        found.imag = lower[n:, :n] - lower[n:, :n].T
        return found


class PairedStep(SubspaceStep):
    """:class:`SubspaceStep` of complex features, whose parts lie side by side: of vectors [a; b].

    With q = [Re Q, Im Q; Im Q, -Re Q] (2n, 2k) the two halves of the columns of the product are,
    as [Re; Im] of complex ones, Z Re(Z^H Q) and Z Im(Z^H Q).
    """

    height = 2

    def _rows(self, columns: Array) -> Array:
        return np.concatenate([columns[:, ::2].T, columns[:, 1::2].T], axis=1)
