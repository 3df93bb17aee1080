"""Acceleration of an iteration x -> g(x) towards its fixed point, from the steps it has made."""

from __future__ import annotations

import numpy as np

from streampca.kernels import Array

REGULAR = 1e-12  # of the largest eigenvalue of the differences' Gram matrix


class Anderson:
    """The next point of a fixed-point iteration: where the last few residuals g(x) - x cancel.

    Of the affine combinations of the last ``depth`` + 1 points that with the smallest residual, to
    first order, is taken, and its image. Near the fixed point of a smooth iteration that converges
    slowly, as EM does, this is what GMRES is to a linear iteration: 5 to 10 times fewer steps are
    usual. It knows nothing of an objective: whoever calls it looks whether the point is any good,
    and else takes the image and calls ``forget``.

    Cost: 2 (depth + 1) vectors, 2 depth (depth + 2) flops for each entry.
    Source: Walker and Ni 2011, "Anderson acceleration for fixed-point iterations", SIAM J. Numer.
    Anal. 49, 1715-1735; for EM, Henderson and Varadhan 2019, J. Comput. Graph. Stat. 28, 834-846.
    """

    def __init__(self, depth: int = 5) -> None:
        self.depth = depth
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._images: list[Array] = []
        self._residuals: list[Array] = []

    def following(self, point: Array, image: Array) -> Array:
        """Where to go from a point (any shape) with this image."""
        self._images = [*self._images[-self.depth :], image]
        self._residuals = [*self._residuals[-self.depth :], image - point]
        if len(self._images) == 1:
            return image
        moved = [a - self._residuals[-1] for a in self._residuals[:-1]]
        gram = np.array([[np.vdot(a, b) for a in moved] for b in moved])
        values, vectors = np.linalg.eigh(gram)
        used = values > REGULAR * values[-1]
        if not used.any():
            return image
        right = -np.array([np.vdot(a, self._residuals[-1]) for a in moved])
        share = vectors[:, used] @ ((vectors[:, used].T @ right) / values[used])
        made = image.copy()
        for one, before in zip(share, self._images[:-1], strict=True):
            made += one * (before - image)
        return made
