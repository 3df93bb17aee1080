"""The five lecture notes and slide decks behind streampca, and their slips.

The documents need not be present. Places are headings or titles of slides:

    000  notes on the PCA workflow, Hard-Impute, kernel PCA, UMAP and CCA
    001  article: projection, covariance, SVD, encoding and reconstruction
    002  slides: reconstruction error, SVD and eig, d >> n, applications, kernel PCA
    003  handwritten notes: spectrum, gaps, truncation, rank and intrinsic dimension
    004  course notes: loadings, projection, reconstruction, probabilistic PCA
"""

from __future__ import annotations

import numpy as np

# document, place, what stands there, what is right, the test that asserts it
ERRATA = (
    (
        "000",
        "practical aspects, scaling",
        "kg and metres have comparable variances",
        "kg and centimetres have; in metres weight holds everything",
        "test_units_decide",
    ),
    (
        "000",
        "minimum error, step 3",
        "n tr(S) is the total variance",
        "it is the total sum of squares; tr(S) is the total variance",
        "test_error_by_traces",
    ),
    (
        "000",
        "low-rank view, 1",
        "points on an r-plane make a matrix of rank r",
        "of rank <= r about the mean, up to r + 1 where the plane misses the origin",
        "test_rank_of_the_projections",
    ),
    (
        "000",
        "Hard-Impute, example",
        "the filled matrix is (a 1; c d; e 2)",
        "the observed zero stays: (a 1; 0 d; e 2)",
        "test_hard_impute_example",
    ),
    (
        "000",
        "kernel trick, quadratic",
        "(1 + a.b)^2 = 1 + sum a_i^2 + sum b_i^2 + ... + 2 a_i b_j",
        "1 + 2 sum a_i b_i + sum a_i^2 b_i^2 + 2 sum_{i<j} a_i b_i a_j b_j",
        "test_quadratic_kernel_is_pca_of_its_features",
    ),
    (
        "000",
        "CCA, from 1D",
        "r = 0 means no association",
        "none that is linear: y = x^2 has r = 0",
        "test_correlation_of_lines_and_of_a_parabola",
    ),
    (
        "000",
        "CCA solution",
        "r does not change with the scales of u and v",
        "it changes sign with a negative one, as r = -1 of y = ax + b with a < 0",
        "test_correlation_of_lines_and_of_a_parabola",
    ),
    (
        "001",
        "1 projection",
        "x.v / |v| is the length of the projection",
        "the length with a sign, negative against v",
        "test_projection_onto_a_vector",
    ),
    (
        "001",
        "3 data projection",
        "x.w is approximately the projection",
        "exactly, for |w| = 1",
        "test_scores_are_exact_projections",
    ),
    (
        "001",
        "6 SVD, observations",
        "eigenvalues of the covariance are s^2",
        "those of X'X; of the covariance they are s^2 / (m - 1)",
        "test_svd_of_the_centred_matrix",
    ),
    (
        "001",
        "in practice, 3",
        "the reconstruction differs from X",
        "not where rank(X) <= k",
        "test_lossy_unless_the_rank_is_small",
    ),
    (
        "002",
        "transformation",
        "V'x is the sum of x_i v_i', v_i the columns of V",
        "the sum of x_i times row i of V",
        "test_transformation_by_rows_of_v",
    ),
    (
        "002",
        "eig against SVD",
        "V of eig and of svd differ in signs alone",
        "in order too: eig of a symmetric matrix ascends",
        "test_order_and_signs_of_all_routes",
    ),
    (
        "002",
        "d >> n",
        "at most n eigenvalues are not 0",
        "at most n - 1 once X is centred",
        "test_wide_data_by_the_sample_space",
    ),
    (
        "002",
        "d >> n, closed form",
        "V = X'W diag(sqrt(W'XX'W))",
        "V = X'W diag(1 / sqrt(W'XX'W))",
        "test_wide_data_by_the_sample_space",
    ),
    (
        "003",
        "eigenvalues of C",
        "1.89 and 0.12 (their sum would not be the trace, 2.05)",
        "1.92535 and .12465",
        "test_the_two_by_two_example",
    ),
    (
        "003",
        "eigenvectors of C",
        "(0.7, 0.76) and (-0.71, 0.7)",
        "(.69722, .71686) and (-.71686, .69722): of length 1 and orthogonal",
        "test_the_two_by_two_example",
    ),
    (
        "003",
        "choice of Y",
        "the second eigenvector is kept",
        "the first, of variance 1.92535",
        "test_the_two_by_two_example",
    ),
    (
        "003",
        "hyperplane",
        "1000 features on 10 dimensions leave 940 zeros",
        "990",
        "test_points_on_a_hyperplane",
    ),
    (
        "003",
        "hyperplane",
        "the rank of C is exactly the dimension of the plane",
        "at most that",
        "test_points_on_a_hyperplane",
    ),
    (
        "003",
        "derivation",
        "Tr cov(Y) is minimised; one stationary point, a maximum",
        "maximised; every set of eigenvectors is stationary, and -A is as good as A",
        "test_trace_is_stationary_at_eigenvectors",
    ),
    (
        "004",
        "1.8 probabilistic PCA",
        "the columns of Lambda approach the PCA space as sigma -> 0",
        "they span it at every sigma; what approaches PCA are the posterior means",
        "test_limit_of_small_noise",
    ),
)

SOLVERS = ("scatter", "tsqr", "gram")


def sample(n: int = 40, p: int = 6, seed: int = 0) -> np.ndarray:
    """(n, p) rows around a mean far from 0, of variances far apart along the components.

    The first component is nearly (1, ..., 1), so that no feature holds most of the variance.
    """
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.column_stack([np.ones(p), rng.standard_normal((p, p - 1))]))[0].T
    return rng.standard_normal((n, p)) * 1.6 ** -np.arange(p) @ turn + np.linspace(-9, 20, p)


def centred(X: np.ndarray) -> np.ndarray:
    """X without its column means."""
    return X - X.mean(axis=0)


def spectrum(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(eigenvalues descending, eigenvectors as columns) of a symmetric matrix."""
    values, vectors = np.linalg.eigh(S)
    return values[::-1], vectors[:, ::-1]


def up_to_sign(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Rows of ``found``, each with the sign that brings it nearest to that of ``expected``."""
    return found * np.where(np.sum(found * expected, axis=1) < 0, -1.0, 1.0)[:, None]


def random_bases(p: int, k: int, count: int, seed: int = 1) -> list[np.ndarray]:
    """``count`` (p, k) matrices with orthonormal columns."""
    rng = np.random.default_rng(seed)
    return [np.linalg.qr(rng.standard_normal((p, k)))[0] for _ in range(count)]
