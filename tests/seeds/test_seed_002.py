"""Document 002: linear maps, reconstruction error, d >> n, eigenfaces, LSA, genomes, kernels."""

from __future__ import annotations

import re
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from matplotlib.figure import Figure

import streampca
from streampca import PCA, KernelPCA, TruncatedSVD
from streampca.errors import InvalidInputError, MemoryLimitError
from tests.seeds.documents import SOLVERS, centred, sample, spectrum, up_to_sign

X = sample(seed=2)
n, d = X.shape
Z = centred(X)
SIGMA = Z.T @ Z / (n - 1)
WIDE = sample(12, 90, seed=5)


# -- maps and projections --------------------------------------------------------------------------


def test_linear_map_is_a_matrix() -> None:
    """Linear mapping: T(x) = Tx; a turn by 90 degrees takes (2, 4) to (-4, 2), signs apart."""
    turned = PCA.from_covariance(np.diag([1.0, 2.0]))
    np.testing.assert_allclose(np.abs(turned.components_), [[0, 1], [1, 0]], atol=1e-15)
    np.testing.assert_allclose(np.abs(turned.transform([[2.0, 4.0]])), [[4, 2]])
    model = TruncatedSVD(3).fit(WIDE)
    T, x, y = model.components_, WIDE[:1], WIDE[1:2]
    assert T.shape == (3, 90)
    np.testing.assert_allclose(model.transform(x)[0], T @ x[0])
    np.testing.assert_allclose(model.transform(x + y), model.transform(x) + model.transform(y))
    np.testing.assert_allclose(model.transform(5 * x), 5 * model.transform(x))


def test_cosine_of_a_projection() -> None:
    """Projection to one dimension: z = |x| cos(alpha) = x'v."""
    model = PCA(1).fit(X)
    v = model.components_[0]
    cosine = Z @ v / np.linalg.norm(Z, axis=1) / np.linalg.norm(v)
    expected = np.linalg.norm(Z, axis=1) * cosine
    np.testing.assert_allclose(model.transform(X)[:, 0], expected, atol=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_components_diagonalise_the_covariance(solver: str) -> None:
    """Projection to d dimensions: V' Sigma V = Lambda, the covariance of the projections."""
    model = PCA(svd_solver=solver).fit(X)
    scores = model.transform(X)
    np.testing.assert_allclose(
        streampca.covariance(scores), np.diag(model.explained_variance_), atol=1e-11
    )
    V = model.components_.T
    np.testing.assert_allclose(V.T @ SIGMA @ V, np.diag(model.explained_variance_), atol=1e-11)
    np.testing.assert_allclose(V.T @ V, np.eye(d), atol=1e-12)


def test_transformation_by_rows_of_v() -> None:
    """Transformation and back: z = V'x, x = sum of z_i v_i. Slip: V'x = sum of x_i times row i."""
    model = PCA().fit(X)
    V, x = model.components_.T, Z[3]
    z = model.transform(X[3:4])[0]
    np.testing.assert_allclose(z, sum(x[i] * V[i] for i in range(d)), atol=1e-12)
    assert np.abs(z - sum(x[i] * V[:, i] for i in range(d))).max() > 0.1
    np.testing.assert_allclose(
        model.inverse_transform(z[None])[0] - model.mean_, sum(z[i] * V[:, i] for i in range(d))
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_error_vector(solver: str) -> None:
    """Reduction to error, proof 1: Z = XT', X-hat = ZT, e = sum of z_i v_i over i > l.

    Its mean is 0, its mean square the dropped eigenvalues; E X'X-hat = E X-hat'X-hat.
    """
    full = PCA(ddof=0).fit(X)
    z, V, values = full.transform(X), full.components_, full.explained_variance_
    for size in (1, 3, 5):
        model = PCA(size, svd_solver=solver, ddof=0).fit(X)
        T = model.components_
        hat = model.inverse_transform(model.transform(X)) - model.mean_
        np.testing.assert_allclose(hat, (Z @ T.T) @ T, atol=1e-11)
        error = Z - hat
        np.testing.assert_allclose(error, z[:, size:] @ V[size:], atol=1e-9)
        np.testing.assert_allclose(error.mean(axis=0), 0, atol=1e-13)
        assert model.reconstruction_error(X) == pytest.approx(values[size:].sum())
        assert np.sum(Z * hat) / n == pytest.approx(values[:size].sum())
        assert np.sum(hat * hat) / n == pytest.approx(values[:size].sum())


# -- routes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_eigenvalues_from_singular_values(solver: str) -> None:
    """Relationship with the SVD: Lambda = S'S / (n - 1)."""
    model = PCA(svd_solver=solver).fit(X)
    s = np.linalg.svd(Z, compute_uv=False)
    np.testing.assert_allclose(model.explained_variance_, s**2 / (n - 1), rtol=1e-10)
    V = model.components_.T
    np.testing.assert_allclose((V * model.explained_variance_) @ V.T, SIGMA, atol=1e-11)


def test_order_and_signs_of_all_routes() -> None:
    """Eig against SVD: ours give the same V, signs too, in descending order. Slip: eig ascends."""
    models = [PCA(svd_solver=solver).fit(X) for solver in SOLVERS]
    for model in models[1:]:
        np.testing.assert_allclose(model.components_, models[0].components_, atol=1e-9)
    ascending = np.linalg.eigh(SIGMA)[0]
    np.testing.assert_allclose(models[0].explained_variance_, ascending[::-1], rtol=1e-10)
    again = PCA.from_covariance(SIGMA)
    np.testing.assert_allclose(again.components_, models[0].components_, atol=1e-9)


def test_complexity() -> None:
    """Complexity: n d^2 for the covariance and d^3 to solve it; the n x n matrix costs d n^2."""

    def work(solver: str, rows: int, columns: int) -> tuple[float, float]:
        plan = PCA(2, svd_solver=solver).plan(np.zeros((rows, columns)))
        return plan.passes[0].flops, plan.solve_flops

    tall, wide = work("scatter", 1000, 100), work("gram", 100, 1000)
    assert tall == wide == (1000 * 100**2, tall[1])
    assert work("scatter", 2000, 100) == (2 * tall[0], tall[1])
    assert work("scatter", 1000, 200)[0] == 4 * tall[0]
    assert work("scatter", 1000, 200)[1] == pytest.approx(8 * tall[1], rel=0.05)
    assert PCA(2).plan(np.zeros((1000, 100))).solver == "scatter"
    assert PCA(2).plan(np.zeros((100, 1000))).solver == "gram"


def test_wide_data_by_the_sample_space() -> None:
    """d >> n: XX' W = W Lambda, V = X'W diag(1 / sqrt(W'XX'W)), Z = XV.

    Slips: the closed form divides by the root; of centred X at most n - 1 eigenvalues are not 0.
    """
    rows = centred(WIDE)
    values, W = spectrum(rows @ rows.T / 11)
    model = PCA(4, svd_solver="gram").fit(WIDE)
    np.testing.assert_allclose(model.explained_variance_, values[:4], rtol=1e-9)
    np.testing.assert_allclose(
        model.explained_variance_, spectrum(rows.T @ rows / 11)[0][:4], rtol=1e-9
    )
    W = W[:, :4]
    raw = rows.T @ W
    V = raw / np.sqrt(np.diagonal(W.T @ rows @ rows.T @ W))
    np.testing.assert_allclose(up_to_sign(model.components_, V.T), V.T, atol=1e-9)
    printed = raw * np.sqrt(np.diagonal(W.T @ rows @ rows.T @ W))
    assert not np.allclose(up_to_sign(model.components_, V.T), printed.T, rtol=0.1)
    np.testing.assert_allclose(
        model.fit_transform(WIDE), centred(WIDE) @ model.components_.T, atol=1e-9
    )
    for solver in SOLVERS:
        assert PCA(svd_solver=solver).fit(WIDE).rank_ == 11


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_sparse_data_are_centred_unseen(solver: str, form: str) -> None:
    """Additional considerations: X is sparse; PCA centres it without storing that."""
    counts = np.random.default_rng(6).poisson(0.3, (30, 20)).astype(float)
    stored = scipy.sparse.csr_array(counts).asformat(form)
    found, expected = (PCA(3, svd_solver=solver).fit(x) for x in (stored, counts))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-9)
    np.testing.assert_allclose(found.transform(stored), expected.transform(counts), atol=1e-9)
    uncentred = TruncatedSVD(3, algorithm=solver).fit(stored)
    s = np.linalg.svd(counts, compute_uv=False)[:3]
    np.testing.assert_allclose(uncentred.singular_values_, s, rtol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [None, "std"])
def test_constant_columns(solver: str, scale: str | None) -> None:
    """Additional considerations: columns that never vary have loadings of exactly 0."""
    with_constants = np.insert(X, [2, 4], [0.1, 7e5], axis=1)
    model = PCA(3, svd_solver=solver, scale=scale).fit(with_constants)
    plain = PCA(3, svd_solver=solver, scale=scale).fit(X)
    assert model.result_.constant.tolist() == [2, 5]
    assert not model.components_[:, [2, 5]].any()
    varying = np.delete(model.components_, [2, 5], axis=1)
    np.testing.assert_allclose(up_to_sign(varying, plain.components_), plain.components_, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-9)


# -- applications ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faces(shared_data: Path) -> np.ndarray:
    """(400, 2576) every second pixel of the ORL faces, which are 112 x 92."""

    def pixels(path: Path) -> np.ndarray:
        raw = path.read_bytes()[-112 * 92 :]
        return np.frombuffer(raw, np.uint8).reshape(112, 92)[::2, ::2].ravel()

    paths = sorted((shared_data / "faces_orl_pgm").glob("s*/*.pgm"))
    return np.array([pixels(path) for path in paths], dtype=np.float64)


def test_eigenfaces(faces: np.ndarray) -> None:
    """Eigenfaces: a mean image and an l x d map of images, by the n x n matrix since d > n."""
    assert faces.shape == (400, 56 * 46)
    model = PCA(20).fit(faces)
    assert model.plan_.solver == "gram"
    np.testing.assert_allclose(model.mean_, faces.mean(axis=0), rtol=1e-12)
    s, Vt = np.linalg.svd(centred(faces), full_matrices=False)[1:]
    np.testing.assert_allclose(up_to_sign(model.components_, Vt[:20]), Vt[:20], atol=1e-6)
    np.testing.assert_allclose(model.singular_values_, s[:20], rtol=1e-9)


def test_r2_and_the_number_of_components(faces: np.ndarray) -> None:
    """R^2 = 1 - errors over squares about the mean, on the training set; l by retained variance."""
    model = PCA(50).fit(faces)
    curve = model.r2_curve()
    rows = centred(faces)
    for size in (1, 10, 50):
        left = rows - rows @ model.components_[:size].T @ model.components_[:size]
        assert curve[size] == pytest.approx(1 - np.sum(left**2) / np.sum(rows**2), rel=1e-9)
    np.testing.assert_allclose(model.r2_curve(faces), curve, atol=1e-9)
    kept = [PCA(share, components=False).fit(faces) for share in (0.9, 0.99)]
    shares = np.cumsum(np.linalg.svd(rows, compute_uv=False) ** 2) / np.sum(rows**2)
    assert [one.n_components_ for one in kept] == [
        int(np.argmax(shares >= share)) + 1 for share in (0.9, 0.99)
    ]
    drawn = streampca.plots.r2(model, Figure().subplots()).lines[0].get_ydata()
    np.testing.assert_allclose(np.asarray(drawn, dtype=float), curve)


# access document retrieval information theory database indexing computer
TITLES = np.array([[1, 1, 1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0, 0, 1.0]])
QUERY = np.array([[0, 0, 0, 1, 0, 0, 0, 1.0]])


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(len(a), len(b)) between rows; 0 beside rows of 0."""
    lengths = np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    return np.divide(a @ b.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def test_three_documents_and_a_query() -> None:
    """LSA, the example: document 1 is relevant and shares no term with the query."""
    np.testing.assert_allclose(cosines(TITLES, QUERY)[:, 0], [0, 2 / 6**0.5, 2 / 6**0.5])
    model = TruncatedSVD(2, algorithm="tsqr").fit(TITLES)
    found = cosines(model.transform(TITLES), model.transform(QUERY))[:, 0]
    U, s, Vt = np.linalg.svd(TITLES, full_matrices=False)
    np.testing.assert_allclose(found, cosines(U[:, :2] * s[:2], QUERY @ Vt[:2].T)[:, 0], atol=1e-12)
    assert found[0] > 1e-3  # document 3 links retrieval to information and computer
    np.testing.assert_allclose(found[1:], [0.99943, 0.95186], atol=5e-6)


@pytest.mark.parametrize("algorithm", SOLVERS)
def test_term_and_document_similarities(shared_data: Path, algorithm: str) -> None:
    """LSA: X is about U S V', X'X about V S^2 V', XX' about U S^2 U'; Deerwester's titles."""
    lines = (shared_data / "deerwester9" / "counts.csv").read_text().splitlines()[1:]
    counts = np.array([[float(v) for v in line.split(",")[1:]] for line in lines]).T
    U, s, Vt = np.linalg.svd(counts, full_matrices=False)
    np.testing.assert_allclose(s[:2], [3.3409, 2.5417], atol=5e-5)
    model = TruncatedSVD(2, algorithm=algorithm).fit(counts)
    scores, V = model.transform(counts), model.components_.T
    np.testing.assert_allclose(model.singular_values_, s[:2], rtol=1e-9)
    np.testing.assert_allclose(
        model.inverse_transform(scores), (U[:, :2] * s[:2]) @ Vt[:2], atol=1e-9
    )
    terms = (Vt[:2].T * s[:2] ** 2) @ Vt[:2]
    np.testing.assert_allclose((V * model.singular_values_**2) @ V.T, terms, atol=1e-9)
    documents = (U[:, :2] * s[:2] ** 2) @ U[:, :2].T
    np.testing.assert_allclose(scores @ scores.T, documents, atol=1e-9)
    about = cosines(scores, scores)
    assert about[:5, :5].min() > 0.8  # c1 to c5, people and computers
    assert about[5:, 5:].min() > 0.8  # m1 to m4, graphs
    assert about[:5, 5:].max() < 0.5


def medlars(folder: Path) -> tuple[scipy.sparse.csr_array, scipy.sparse.csr_array, np.ndarray]:
    """(documents x terms, queries x terms, relevant (queries, documents))."""
    from sklearn.feature_extraction.text import CountVectorizer

    def texts(name: str) -> list[str]:
        whole = (folder / name).read_text(errors="replace")
        return [part.split(".W", 1)[1] for part in re.split(r"(?m)^\.I ", whole)[1:]]

    counter = CountVectorizer(stop_words="english", min_df=2, dtype=np.float64)
    documents = scipy.sparse.csr_array(counter.fit_transform(texts("MED.ALL")))
    queries = scipy.sparse.csr_array(counter.transform(texts("MED.QRY")))
    relevant = np.zeros((queries.shape[0], documents.shape[0]), dtype=bool)
    for line in (folder / "MED.REL").read_text().splitlines():
        query, document = line.split()[:2]
        relevant[int(query) - 1, int(document) - 1] = True
    return documents, queries, relevant


def mean_precision(similar: np.ndarray, relevant: np.ndarray) -> float:
    """Over recall levels .1 to .9 (the best precision at that recall or more) and queries."""
    found = []
    for row, right in zip(similar, relevant, strict=True):
        hits = right[np.argsort(-row, kind="stable")]
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        recall = np.cumsum(hits) / hits.sum()
        found += [precision[recall >= level - 1e-12].max() for level in np.arange(1, 10) / 10]
    return float(np.mean(found))


def test_latent_space_finds_more_than_terms(shared_data: Path) -> None:
    """LSA for retrieval: on MEDLARS 100 factors reach .52 where matching terms reaches .46."""
    documents, queries, relevant = medlars(shared_data / "text_med")
    assert (documents.shape[0], queries.shape[0], relevant.sum()) == (1033, 30, 696)
    by_terms = cosines(queries.toarray(), documents.toarray())
    model = TruncatedSVD(100, algorithm="gram")
    scores = model.fit_transform(documents)
    by_factors = cosines(model.transform(queries), scores)
    assert mean_precision(by_terms, relevant) == pytest.approx(0.46, abs=0.005)
    assert mean_precision(by_factors, relevant) == pytest.approx(0.52, abs=0.005)


def test_genomes_fit_where_their_covariance_does_not() -> None:
    """Genomic data: 3192 subjects, 500,568 loci, two directions; d x d would take 1.9 TB."""
    calls = da.zeros((3192, 500_568), chunks=(3192, 2048), dtype="int8")
    plan = PCA(2, svd_solver="gram", memory_limit="1GiB").plan(calls)
    assert plan.peak_nbytes < 2**30
    assert plan.memory["gram"]["folded accumulators"] < 2 * 8 * 3192**2
    assert plan.passes[0].flops == 3192.0**2 * 500_568
    with pytest.raises(MemoryLimitError, match=r"folded accumulators, 1867 GiB, in scatter"):
        PCA(2, svd_solver="scatter", memory_limit="1GiB").plan(calls)
    assert round(8 * 500_568**2 / 2**30) == 1867


# -- kernels ---------------------------------------------------------------------------------------


def cubic(a: np.ndarray) -> np.ndarray:
    """Explicit features of two variables whose products are a kernel."""
    x, y = a.T
    return np.column_stack([x, y, x**2, x * y, y**2, x**3, y**3])


def test_centring_of_a_kernel_and_of_test_rows() -> None:
    """Kernel PCA, its test data, proof 2: K - 1K - K1 + 1K1, and K_test - 1'K - K_test 1 + 1'K1.

    PCA of the features and KernelPCA of the kernels give these eigenvalues and scores.
    """
    rng = np.random.default_rng(7)
    train, test = (cubic(rng.uniform(-1, 1, (rows, 2))) for rows in (15, 4))
    K, K_test = train @ train.T, test @ train.T
    kernels = KernelPCA(3, kernel="precomputed").fit(K)
    found = (kernels.transform(K), kernels.transform(K_test))
    one, one_test = np.full((15, 15), 1 / 15), np.full((4, 15), 1 / 15)
    K_test = K_test - one_test @ K - K_test @ one + one_test @ K @ one
    K = K - one @ K - K @ one + one @ K @ one
    values, U = (part[..., :3] for part in spectrum(K))
    model = PCA(3, svd_solver="gram").fit(train)
    np.testing.assert_allclose(model.explained_variance_, values / 14, rtol=1e-9)  # Gamma = K/(n-1)
    expected = U * np.sqrt(values)
    signs = np.sign(np.sum(model.transform(train) * expected, axis=0))
    np.testing.assert_allclose(model.transform(train), signs * expected, atol=1e-9)
    expected_test = (K_test @ U) / np.sqrt(values)
    np.testing.assert_allclose(model.transform(test), signs * expected_test, atol=1e-9)
    np.testing.assert_allclose(kernels.eigenvalues_, values, rtol=1e-9)
    signs = np.sign(np.sum(found[0] * expected, axis=0))
    np.testing.assert_allclose(found[0], signs * expected, atol=1e-9)
    np.testing.assert_allclose(found[1], signs * expected_test, atol=1e-9)


def test_more_components_than_features_need_more_features() -> None:
    """Kernel PCA against PCA: PCA refuses l > d, PCA of mapped features does not."""
    plane = np.random.default_rng(8).uniform(-1, 1, (15, 2))
    with pytest.raises(InvalidInputError, match="n_components=3"):
        PCA(3).fit(plane)
    assert PCA(3).fit(cubic(plane)).components_.shape == (3, 7)
