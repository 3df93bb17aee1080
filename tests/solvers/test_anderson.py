"""Anderson's acceleration: a linear iteration ends, as GMRES does; a hopeless point is no harm."""

from __future__ import annotations

import numpy as np

from streampca.solvers.factor_surrogate import Anderson


def test_a_linear_iteration_ends_after_as_many_steps_as_it_has_rates():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    rates = np.repeat([0.999, 0.9, 0.5, -0.3], 10)
    matrix, constant = (turn * rates) @ turn.T, rng.normal(size=40)
    limit = np.linalg.solve(np.eye(40) - matrix, constant)
    ahead, x = Anderson(depth=5), np.zeros(40)
    for _ in range(6):
        x = ahead.following(x, matrix @ x + constant)
    np.testing.assert_allclose(x, limit, rtol=1e-6)
    plain = np.zeros(40)
    for _ in range(1000):
        plain = matrix @ plain + constant
    assert np.abs(plain - limit).max() > 0.1


def test_at_the_fixed_point_it_stays():
    ahead, x = Anderson(), np.array([[1.0, 2.0]])
    for _ in range(4):
        made = ahead.following(x, x)
        np.testing.assert_array_equal(made, x)
    ahead.forget()
    np.testing.assert_array_equal(ahead.following(x, x + 1.0), x + 1.0)
