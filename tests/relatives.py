"""Simulated samples of several ancestries, with pedigrees: whoever is related is known."""

from __future__ import annotations

import numpy as np


class Families:
    """Founders of a Balding-Nichols model, and children of them by Mendelian sampling.

    haplotypes : (n, 2, p) alleles of every sample so far.  ancestry : (n, populations) shares.
    pedigree : (n, n) kinship that the pedigree says, 0.5 on the diagonal.
    """

    def __init__(self, p: int, populations: int, fst: float, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        ancestral = self.rng.uniform(0.1, 0.9, p)
        spread = (1 - fst) / fst
        self.frequencies = self.rng.beta(
            ancestral * spread, (1 - ancestral) * spread, (populations, p)
        )
        self.haplotypes = np.empty((0, 2, p), np.int8)
        self.ancestry = np.empty((0, populations))
        self.pedigree = np.empty((0, 0))

    def founders(self, shares: np.ndarray) -> list[int]:
        """Add unrelated samples.  shares : (m, populations) of their ancestry."""
        shares = np.atleast_2d(shares)
        frequency = shares @ self.frequencies
        made = self.rng.random((len(shares), 2, frequency.shape[1])) < frequency[:, None]
        return self._add(made, shares, np.zeros((len(shares), len(self.pedigree))))

    def child(self, mother: int, father: int) -> int:
        """Add a child of two samples."""
        p = self.haplotypes.shape[2]
        allele = self.rng.integers(0, 2, (2, p))
        parents = self.haplotypes[[mother, father]]
        made = np.take_along_axis(parents, allele[:, None], axis=1)[:, 0]
        shares = self.ancestry[[mother, father]].mean(axis=0)
        with_others = self.pedigree[[mother, father]].mean(axis=0)
        return self._add(made[None], shares[None], with_others[None])[0]

    def twin(self, other: int) -> int:
        """Add a duplicate."""
        made, shares = self.haplotypes[other][None], self.ancestry[other][None]
        return self._add(made, shares, self.pedigree[other][None])[0]

    def _add(self, haplotypes: np.ndarray, shares: np.ndarray, with_others: np.ndarray) -> list:
        first, m = len(self.pedigree), len(shares)
        self.haplotypes = np.concatenate([self.haplotypes, haplotypes.astype(np.int8)])
        self.ancestry = np.concatenate([self.ancestry, shares])
        self.pedigree = np.block([[self.pedigree, with_others.T], [with_others, np.eye(m) / 2]])
        return list(range(first, first + m))

    def family(self, mother: int, father: int, children: int = 3) -> list[int]:
        """Add full siblings, and a child of the last and a new founder of the same ancestry."""
        made = [self.child(mother, father) for _ in range(children)]
        (spouse,) = self.founders(self.ancestry[made[-1]])
        return [*made, self.child(made[-1], spouse)]

    @property
    def calls(self) -> np.ndarray:
        """(n, p) int8 copies."""
        return self.haplotypes.sum(axis=1, dtype=np.int8)


def admixed_families(p: int, n: int, families: int, seed: int = 0, fst: float = 0.1) -> Families:
    """n founders, admixed of two populations, and families of some of them."""
    made = Families(p, 2, fst, seed)
    share = made.rng.beta(0.6, 0.6, n)
    founders = made.founders(np.stack([share, 1 - share], axis=1))
    for i in range(families):
        made.family(founders[2 * i], founders[2 * i + 1])
    return made
