"""Random matrices and components, and whether what is proved about them is true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import streampca
from streampca.certification.bounds import (
    Pairs,
    basis_of,
    judge,
    remainder_of_all,
    remainder_of_probes,
    rounding_of,
)
from streampca.certification.conventions import Convention
from streampca.certification.reading import Reader
from streampca.passes import Running


@dataclass
class Case:
    """x (n, p) with NaN; its samples count ``weights``, its features are multiplied by ``factors``.

    calls : x holds genotypes, which are read as int8, features streamed.
    vectors : (d, k) unit vectors, of samples (``space`` 0) or features.  axis : streamed.
    """

    x: np.ndarray
    convention: Convention
    weights: np.ndarray
    factors: np.ndarray
    space: int
    axis: int
    vectors: np.ndarray
    rng: np.random.Generator
    calls: bool = False

    @classmethod
    def of(cls, seed: int, calls: bool = False) -> Case:
        rng = np.random.default_rng(seed)
        x = genotypes(rng) if calls else spectral(rng)
        n, p = x.shape
        if rng.random() < 0.3:
            x = x.copy()
            x[rng.random(x.shape) < 0.05] = np.nan
        convention = Convention(bool(rng.random() < 0.8), "std" if rng.random() < 0.3 else None)
        weights = rng.uniform(0.5, 3, n) if rng.random() < 0.3 else np.ones(n)
        factors = rng.uniform(0.5, 2, p) if rng.random() < 0.3 else np.ones(p)
        space, axis = (int(one) for one in rng.integers(2, size=2))
        axis = 1 if calls else axis
        case = cls(x, convention, weights, factors, space, axis, np.empty(0), rng, calls)
        case.vectors = case.components()
        return case

    def prepared(self) -> np.ndarray:
        """(n, p) Z, in extended precision until it is small."""
        x, w = self.x.astype(np.longdouble), self.weights.astype(np.longdouble)
        seen = ~np.isnan(x)
        weight = w @ seen
        total = w @ np.where(seen, x, 0)
        mean = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
        z = np.where(seen, x - mean, 0)
        spread = np.sqrt((w @ z**2) / np.maximum(weight - 1, 1))
        z = z if self.convention.center else z + mean
        if self.convention.scale:
            z = np.divide(z, spread, out=np.zeros_like(z), where=spread > 1e-14 * abs(mean))
        return (z * self.factors * np.sqrt(w)[:, None]).astype(float)

    def components(self) -> np.ndarray:
        """(d, k) singular vectors: exact, of another choice, off by some error, or rounded."""
        rng, (u, s, vt) = self.rng, np.linalg.svd(self.prepared(), full_matrices=False)
        side = vt.T if self.space else u
        k = int(rng.integers(1, max(2, min(6, np.count_nonzero(s > 1e-7 * s[0])))))
        chosen = np.arange(k)
        if rng.random() < 0.2:
            chosen = np.sort(rng.choice(min(len(s), k + 4), k, replace=False))
        found = side[:, chosen]
        if rng.random() < 0.6:
            noise = rng.normal(size=found.shape) / np.sqrt(len(found))
            found = found + 10 ** rng.uniform(-14, -1) * noise
        if rng.random() < 0.2:
            found = np.round(found, int(rng.integers(3, 8)))
        return found / np.linalg.norm(found, axis=0)

    def judged(self) -> Pairs:
        """What is proved, by the products of one or two reads."""
        roots = np.sqrt(self.weights)
        opened = streampca.open(self.x)
        if self.calls:
            codes = np.where(np.isnan(self.x), -1, self.x).astype(np.int8)
            order = "C" if self.rng.random() < 0.5 else "F"
            opened = streampca.open(np.array(codes, order=order), missing_value=-1)
        reader = Reader(opened, roots, self.factors, Running(progress=False))
        d, (basis, _) = len(self.vectors), basis_of(self.vectors)

        def images(vectors: np.ndarray) -> np.ndarray:
            (made,) = reader.images(vectors, self.space, self.axis, (self.convention,))
            self.total, self.error = made.total, made.error
            return made.images

        if self.rng.random() < 0.5:
            whole = images(np.eye(d))
            floor = rounding_of(self.total, max(self.x.shape)) + self.error
            rest, image = remainder_of_all(basis, whole, floor), whole @ basis
        else:
            probes = self.rng.standard_normal((d, min(d, int(self.rng.integers(0, 8)))))
            made = images(np.hstack([basis, probes]))
            r, floor = basis.shape[1], rounding_of(self.total, max(self.x.shape)) + self.error
            image, passes = made[:, :r], int(self.rng.integers(1, 4))
            rest = remainder_of_probes(
                basis, image, probes, made[:, r:], self.total, floor, passes, images
            )
        return judge(self.vectors, basis, image, rest, self.total, floor)


def spectral(rng: np.random.Generator) -> np.ndarray:
    """A small matrix with one of six kinds of spectrum, of any offset."""
    n, p = (int(one) for one in rng.integers(5, 60, 2))
    r = min(n, p)
    kinds = [
        np.linspace(2, 1, r),
        2.0 ** -np.arange(r),
        1 + 0.01 * rng.random(r),
        10.0 ** -np.linspace(0, 12, r),
        np.where(np.arange(r) < 3, 5.0, 1.0),
        1 / (1 + np.arange(r)),
    ]
    u, v = (np.linalg.qr(rng.normal(size=(m, r)))[0] for m in (n, p))
    x = (u * kinds[int(rng.integers(6))]) @ v.T
    if rng.random() < 0.5:
        x = x + rng.normal(size=p) * 10 ** rng.uniform(-2, 4)
    return x.astype(np.float32) if rng.random() < 0.3 else x


def genotypes(rng: np.random.Generator) -> np.ndarray:
    """Counts of alleles, rare and common ones."""
    n, p = (int(one) for one in rng.integers(5, 60, 2))
    return rng.binomial(2, rng.beta(0.5, 0.5, p), (n, p)).astype(float)


def violations(seed: int, calls: bool = False) -> list[str]:
    """What is claimed and false, by numpy.linalg of the whole matrix."""
    case = Case.of(seed, calls)
    z, v, found = case.prepared(), case.vectors, case.judged()
    s = z.T @ z if case.space else z @ z.T
    values, true = (one[..., ::-1] for one in np.linalg.eigh(s))
    tiny = 1e-13 * values.sum()
    rho = np.einsum("ij,ij->j", v, s @ v)
    basis = np.linalg.qr(v)[0]
    outside = np.eye(len(s)) - basis @ basis.T
    missed = np.linalg.eigvalsh(outside @ s @ outside)[::-1]
    least = np.linalg.eigvalsh(basis.T @ s @ basis)[0]
    rest = found.remainder
    false = [
        *(["value"] if not np.allclose(found.value, rho, rtol=1e-9, atol=tiny) else []),
        *(["missed"] if missed[0] > rest.largest + 1e-2 * tiny else []),
        *(["held"] if np.any(rest.least > missed[: len(rest.least)] + tiny) else []),
    ]
    residual = np.linalg.norm(s @ v - rho * v, axis=0)
    if np.any(abs(found.residual - found.floor - residual) > tiny + found.floor):
        false.append(f"residual {found.residual} {residual}")
    for i in range(v.shape[1]):
        if np.min(abs(values - rho[i])) > found.value_bound[i] + 1e-2 * tiny:
            false.append(f"value bound {i}")
        j = int(found.number[i]) - 1
        if found.angle_bound[i] > 1.5 or not (found.sure[i] or missed[0] <= least):
            continue
        sine = np.linalg.norm(v[:, i] - true[:, j] * (true[:, j] @ v[:, i]))
        near = np.abs(np.delete(values, j) - values[j]).min(initial=np.inf)
        if sine > np.sin(found.angle_bound[i]) + 2e-2 * tiny / near + 1e-15:
            false.append(f"angle {i}: {sine} > {found.angle_bound[i]}")
    return [f"seed {seed}: {one}" for one in false]
