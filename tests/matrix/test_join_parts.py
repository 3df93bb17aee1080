"""What of a joined matrix travels to a worker."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse

import streampca
from streampca import concat_features, concat_samples


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("joined", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_carries_only_the_matrices_that_it_crosses(axis, joined, kind):
    rng = np.random.default_rng(0)
    lengths = (40, 1, 100, 60)
    arrays = [
        rng.integers(0, 3, (n, 50) if joined == 0 else (50, n)).astype(float) for n in lengths
    ]
    whole = np.concatenate(arrays, axis=joined)
    sources = arrays if kind == "dense" else [scipy.sparse.csr_array(a) for a in arrays]
    join = concat_features if joined else concat_samples
    matrix = join(*(streampca.open(one) for one in sources))
    n = matrix.shape[axis]
    nbytes = len(pickle.dumps(matrix))
    for start, stop in [(0, 5), (3, 40), (39, 42), (40, 41), (41, n), (n - 3, n), (0, n), (7, 7)]:
        if not start <= stop <= n:
            continue
        part = pickle.loads(pickle.dumps(matrix.part(axis, start, stop)))
        found = part.read(axis, start, stop) if stop > start else None
        if found is not None:
            found = found if isinstance(found, np.ndarray) else found.toarray()
            expected = whole[:, start:stop] if axis else whole[start:stop]
            np.testing.assert_array_equal(found, expected)
            assert part.count_chunks(axis, start, stop) == matrix.count_chunks(axis, start, stop)
        assert part.shape == matrix.shape
    if axis == joined:
        assert len(pickle.dumps(matrix.part(axis, 2, 30))) < 0.3 * nbytes
        assert len(matrix.part(axis, 2, 30).parts) == 1
        assert len(matrix.part(axis, 39, 42).parts) == 3
