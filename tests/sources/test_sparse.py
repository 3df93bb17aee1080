"""scipy.sparse matrices: blocks of either axis, and parts that travel to workers."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import streampca

X = scipy.sparse.random(400, 300, density=0.05, format="csr", random_state=0)


@pytest.mark.parametrize("format_", ["csr", "csc", "coo"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_holds_no_more_than_it_reads(axis, format_):
    matrix = streampca.open(X.asformat(format_))
    dense = X.toarray()
    part = matrix.part(axis, 100, 140)
    assert part.shape == matrix.shape
    for inner in (part, part.part(axis, 110, 135), pickle.loads(pickle.dumps(part))):
        found = inner.read(axis, 112, 130).toarray()
        np.testing.assert_array_equal(found, dense[:, 112:130] if axis else dense[112:130])
    small, whole = len(pickle.dumps(part)), len(pickle.dumps(matrix))
    assert small < 0.25 * whole
    assert matrix.read(axis, 0, 5).shape[axis] == 5  # the matrix itself is as it was


def test_content_is_part_of_the_stamp_alone():
    other = X.copy()
    other.data[-1] += 1
    first, second = streampca.open(X), streampca.open(other)
    assert first.content_stamp() != second.content_stamp()
    assert first.content_stamp() == streampca.open(X.copy()).content_stamp()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_plan_counts_blocks_of_both_axes_and_converts_nothing(axis):
    matrix = streampca.open(X)
    edges = np.array([0, 7, 7, 190, X.shape[axis]])
    planned = matrix.spans_nbytes(axis, edges)
    assert not matrix.compressed
    blocks = [matrix.read(axis, a, b) for a, b in pairwise(edges.tolist())]
    found = [b.data.nbytes + b.indices.nbytes + b.indptr.nbytes for b in blocks]
    np.testing.assert_array_equal(planned, found)
    assert bool(matrix.compressed) == bool(axis)
    assert bool(matrix.read_scratch_nbytes(axis, 10)) == bool(axis)
