"""Latent semantic analysis: texts or counts in, ranked documents and terms out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np

from streampca.errors import EmptyDocumentsWarning, InvalidInputError, shorten, warn_caller
from streampca.kernels import Array
from streampca.matrix import ChunkedMatrix
from streampca.matrix.join import concat_samples
from streampca.models.contract import shared_parameters as shared
from streampca.models.contract.estimator import attach
from streampca.models.contract.linear import LinearModel
from streampca.models.contract.parameters import Kept, parameter
from streampca.models.contract.registry import estimator
from streampca.models.contract.request import Request, whole_number
from streampca.models.pca.pca import iterated
from streampca.models.pca.truncated_svd import SOLVERS
from streampca.models.rows.line_sums import row_sums, row_sums_in_memory
from streampca.models.text.counting import (
    Counted,
    count_texts,
    counted,
    labelled,
    open_texts,
    opened_counts,
)
from streampca.models.text.counting_plan import planned_opening
from streampca.models.text.lsa_fit import WeightedCounts, lsa_candidates
from streampca.models.text.lsa_result import OF_TEXTS, Folded, LSADecomposition, Match
from streampca.models.text.vocabulary import Kept as KeptTerms
from streampca.passes import Outcome, Plan, Planned, choose
from streampca.sources import as_matrix
from streampca.sources.sparse.anndata import TOKENS
from streampca.sources.texts.documents import Texts, is_texts
from streampca.store.sinks import refuse_occupied


@estimator
class LSA(LinearModel):
    """Latent semantic analysis: a truncated SVD of weighted counts of terms in documents.

    Attributes
    ----------
    components_ (k, p) V', singular_values_ (k,), explained_variance_ratio_ (k,) shares of the
    squared length of the weighted counts, document_coordinates_ (n, k) U S, term_coordinates_
    (p, k) V S, vocabulary_ (p terms), certificate_, plan_, cost_, result_.

    ``fit`` takes texts, or counts of documents x terms with names. Counts of texts that do not fit
    in memory: ``LSA().fit(streampca.open_texts("articles/", "counts.zarr"))``. Queries are split
    and weighted as the documents of the fit were, and all k factors are returned, each with a
    bound of its error.
    Cost: for texts one read of them; then of the counts two passes for log-entropy (tf-idf two,
    raw none), those of a TruncatedSVD, and one for the coordinates. A search compares with
    every document: n x k products.
    Raises InvalidInputError, MemoryLimitError before the SVD reads. Warns (EmptyDocumentsWarning)
    of documents without a word that counts, which nothing finds; AccuracyWarning as TruncatedSVD.
    Source: Deerwester, Dumais, Furnas, Landauer and Harshman 1990, JASIS 41(6), pages 391 to 407;
    log-entropy: Dumais 1991, Behavior Research Methods 23(2).

    Examples
    --------
    >>> from streampca import LSA
    >>> texts = ["cats and dogs", "dogs and cats play", "stars and a galaxy", "a galaxy has stars"]
    >>> model = LSA(2).fit(texts)
    >>> [match.name for match in model.search("galaxy", n=2)]
    ['3', '2']
    """

    n_components: int = parameter(
        default=100,
        kw_only=False,
        counts_components=True,
        meaning="k, a number: 100 to 300 for thousands of documents, fewer for fewer.",
    )
    weighting: Any = parameter(
        default="log-entropy",
        choices=("log-entropy", "tf-idf", "raw"),
        kept=Kept.NAME,
        meaning=""""log-entropy", "tf-idf" (as scikit-learn's, documents of length 1), "raw" counts,
            or in Python a fitted ``streampca.preprocess.LogEntropy`` or its like, whose weights
            then are of other documents.""",
    )
    stop_words: Any = parameter(
        default=None,
        meaning="""of texts, as ``streampca.open_texts`` takes it: words that do not count,
            "english" or a list.""",
    )
    min_df: Any = parameter(
        default=1, meaning="of texts: documents that hold a term, at least (a float is a share)."
    )
    max_df: Any = parameter(
        default=1.0, meaning="of texts: documents that hold a term, at most (a float is a share)."
    )
    max_features: int | None = parameter(
        default=None, meaning="of texts: the number of terms, the most frequent; None: all."
    )
    coordinates: str | None = parameter(
        default=None,
        kept=Kept.RECORD,
        meaning="""path of a new Zarr array for the coordinates of the documents, which a search
            then reads block by block. None: in memory (n x k x 4 bytes), saved with the model.""",
    )
    solver: str = parameter(
        default="auto", meaning="of the decomposition, as :class:`TruncatedSVD`."
    )
    tol: float | None = shared.TOL
    max_passes: int | None = parameter(default=None, meaning="as :class:`PCA`.")
    random_state: Any = shared.RANDOM_STATE

    whiten = False
    missing = "raise"

    def _fitted(self) -> LSADecomposition:
        result = super()._fitted()
        assert isinstance(result, LSADecomposition)
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True  # counts
        return tags

    # -- fitting --------------------------------------------------------------------------------

    def plan(self, X: Any, *, dim: Any = None, terms: Any = None, names: Any = None) -> Plan:
        """What ``fit`` would do with X, (n, p): passes, reads, memory. Reads texts alone."""
        return self._plan_for(self._counts(X, dim, terms, names), None)

    def fit(
        self, X: Any, y: Any = None, *, dim: Any = None, terms: Any = None, names: Any = None
    ) -> Self:
        """Fit to texts, or to counts (documents, terms).

        X : texts: a folder, a pattern, a list or any iterable of them, as ``streampca.open_texts``
            takes; or counts: what that gives, or anything that ``streampca.open`` takes.
        terms, names : of the columns and rows of counts that have none of their own, such as
            ``vectorizer.get_feature_names_out()``.
        """
        self.result_: LSADecomposition
        if self.coordinates is not None:  # before texts are counted
            refuse_occupied(self.coordinates, overwrite=False)
        self._fit_to(self._counts(X, dim, terms, names), None)
        self.dim_ = dim
        return self

    def _request(self, matrix: ChunkedMatrix, *, seed: int = 0) -> Request:
        """Of the truncated SVD of the weighted counts.  seed : drawn by a fit."""
        if self.solver not in SOLVERS:
            raise InvalidInputError(f"solver={self.solver!r}; expected one of {SOLVERS}")
        whole_number("n_components", self.n_components)
        request = iterated(self, self.solver, "auto", center=False, ddof=0, random_state=seed)
        return request.with_side_data(matrix)

    def _planned(self, matrix: ChunkedMatrix, request: Request) -> Planned[Any]:
        counts = WeightedCounts.of(matrix, self.weighting)
        candidates = lsa_candidates(counts, request, self.coordinates)
        planned = choose(counts.as_if, self.registered_name, candidates, self.memory_limit)
        plan, limit = planned.plan, self.memory_limit
        memory = {**plan.memory, **planned_opening(matrix, limit, plan.memory["process"])}
        return replace(planned, plan=replace(plan, memory=memory))

    def _result(
        self, matrix: ChunkedMatrix, request: Request, done: Outcome[Any]
    ) -> LSADecomposition:
        described = self._described(matrix, done, random_state=request.random_state)
        del described["labels"]  # those of the weighted counts say how they were weighted
        if planned_opening(matrix, self.memory_limit, {}):
            peak, held = (described["provenance"][name] for name in ("peak_bytes", "held_bytes"))
            described["provenance"] |= matrix.opening.followed_by(peak, held)
        result: LSADecomposition = replace(done.answer, **described)
        if empty := result.empty_documents():
            names = shorten(result.labels.samples.names(empty[:4]), len(empty))
            warn_caller(
                f"{len(empty)} of {result.n_documents} documents have no word that counts in these "
                f"{result.n_components} factors, and no search finds them: {names}",
                EmptyDocumentsWarning,
            )
        return result

    def fit_transform(self, X: Any, y: Any = None, *, dim: Any = None, **more: Any) -> Array:
        """Fit, and the coordinates of the documents, (n, k) U S."""
        return np.array(self.fit(X, dim=dim, **more)._fitted().document_coordinates[:])

    def _counts(self, X: Any, dim: Any = None, terms: Any = None, names: Any = None) -> Any:
        """X as documents x terms: texts are counted, anything else is opened."""
        options = {name: getattr(self, name) for name in OF_TEXTS}
        if is_texts(X):
            if terms is None:
                return open_texts(X, names=names, memory_limit=self.memory_limit, **options)
            raise InvalidInputError("terms= is for counts; X are texts: leave it out")
        defaults = {name: self.parameters[name].default for name in OF_TEXTS}
        given = {name: value for name, value in options.items() if value != defaults[name]}
        return opened_counts(X, given, dim, terms, names, self.missing_value)

    # -- texts as points ------------------------------------------------------------------------

    def fold_in(self, queries: Any) -> Array:
        """Coordinates of texts or counts among those of the documents, (m, k).

        queries : a text, a list of texts, or counts (m, p) of the terms of the model. They are
            split and weighted as the documents of the fit were, and nothing of the model changes.

        A row is d V, d the weighted counts: for a document of the fit that is its row of U S.
        Raises InvalidInputError for a text of which the model knows no word.
        """
        result = self._fitted()
        texts = [queries] if isinstance(queries, str) else queries
        if not (isinstance(queries, str) or is_texts(queries)):
            return np.asarray(self.transform(queries))
        counts, unknown = count_texts(texts, result.splitting, result.places)
        weighted = result.preprocessing.apply(as_matrix(counts), row_sums_in_memory)
        points = weighted.read(0, 0, len(unknown)) @ result.require_components().T
        result.check_query(points, unknown)
        return np.asarray(points)

    def transform(self, X: Any, **options: Any) -> Any:
        """Coordinates of texts or of counts, (m, k): one pass; see :meth:`Estimator.transform`."""
        if is_texts(X):
            X = self._counted_alike(X).matrix
        return super().transform(X, **options)

    def words(self, text: str) -> tuple[list[str], list[str]]:
        """The terms of a text that the model knows, and those that it does not."""
        result = self._fitted()
        terms = dict.fromkeys(result.splitting.split(text))
        known = [term for term in terms if term in result.places]
        return known, [term for term in terms if term not in result.places]

    # -- answers --------------------------------------------------------------------------------

    def search(self, query: Any, n: int = 10) -> list[Match]:
        """The n documents nearest to a text, best first: (name, score, number), the
        score is the cosine.

        query : a text; or counts (p,) or (1, p), for a model whose terms have no names.

        Cost: n x k products over all documents. Raises InvalidInputError.
        """
        counts = getattr(query, "ndim", 2)
        point = self.fold_in(query if counts == 2 else np.asarray(query)[None])
        if len(point) != 1:
            raise InvalidInputError(
                f"{len(point)} queries; expected one: [model.search(one) for one in queries]"
            )
        self._fitted().check_query(point, [[]])
        return self._fitted().near_documents(point[0], n)

    def similar_documents(self, document: int | str, n: int = 10) -> list[Match]:
        """The n documents nearest to one of them, best first. Raises InvalidInputError: no such."""
        result = self._fitted()
        place = result.place_of_document(document)
        point = np.asarray(result.document_coordinates[place])
        if not np.any(point):
            raise InvalidInputError(
                f"document {document!r:.80} has no word that counts, so that nothing is near to it"
            )
        return result.near_documents(point, n, leave=place)

    def similar_terms(self, word: str, n: int = 10) -> list[Match]:
        """The n terms nearest to one of them, best first: (name, score, number)."""
        result = self._fitted()
        return result.near_terms(result.place_of_term(word), n)

    # -- more documents -------------------------------------------------------------------------

    def add_documents(self, X: Any, *, names: Any = None, corpus: Any = None) -> Folded:
        """Add texts or counts (m, p) to the documents that are found, and tell what that lost.

        names : of the documents, as ``fit`` takes them.
        corpus : the counts or texts of the documents of the fit: then the model is fitted again to
            all of them, exactly, with weights of all. The vocabulary stays.

        Without ``corpus`` documents are folded in: weights and space stay as they are, words that
        the model does not know are dropped, and what the space does not hold of the new ones is
        ``lost``. Where that is much more than ``lost_in_fit``, fit again.
        Cost: two passes over the new documents; with ``corpus`` those of ``fit``.
        Raises InvalidInputError where the vocabulary is another, or a name stands already.
        """
        matrix, unknown = self._more(X, names)
        if corpus is not None:
            whole = concat_samples(self._more(corpus, None)[0], matrix)
            whole.labels = replace(whole.labels, attrs={TOKENS: self._fitted().tokens})
            self._fit_to(whole, None)
        result = self._fitted()
        rows = self._passes(self._matrix(matrix))
        points = rows.table("documents", result.scores_of(rows.options), rows.dtype)
        length = float(row_sums(rows.matrix, squares=True, running=rows.running).sum())
        held = float(np.sum(points.astype(np.float64) ** 2))
        if corpus is None:
            attach(self, result.with_documents(points, matrix.labels.samples, held, length))
        lost = max(0.0, 1.0 - held / length) if length else 0.0
        return Folded(len(points), lost, result.lost, unknown)

    def _more(self, X: Any, names: Any) -> tuple[ChunkedMatrix, float | None]:
        """Further documents over the vocabulary of the model; the share of their unknown words."""
        if not is_texts(X):
            return labelled(as_matrix(X, dim=self.dim_), None, names), None
        return self._counted_alike(X, names)

    def _counted_alike(self, X: Any, names: Any = None) -> Counted:
        """Texts counted as those of the fit were, over its vocabulary."""
        result = self._fitted()
        return counted(
            Texts(X, names=names),
            result.splitting,
            KeptTerms(),
            result.vocabulary,
            memory_limit=self.memory_limit,
        )

    # -- under names of attributes --------------------------------------------------------------

    @property
    def document_coordinates_(self) -> Any:
        """(n, k) U S of the documents, those that were added behind those of the fit."""
        return self._fitted().document_coordinates

    @property
    def term_coordinates_(self) -> Array:
        """(p, k) V S of the terms."""
        return self._fitted().term_coordinates

    @property
    def vocabulary_(self) -> list[str]:
        """The p terms."""
        return self._fitted().vocabulary
