"""What a latent semantic analysis answers: near documents, near terms, coordinates of texts."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import InvalidInputError, SourceError, shorten
from streampca.kernels import Array
from streampca.matrix import AxisLabels
from streampca.models.contract.request import whole_number
from streampca.models.results.decomposition import PrincipalComponents
from streampca.models.text.splitting import Tokens
from streampca.store.sinks import append_rows, marked, open_written

OF_TEXTS = ("stop_words", "min_df", "max_df", "max_features")  # parameters of a fit to texts
ROWS = 65536  # documents that are compared at a time


class Match(NamedTuple):
    """A document or a term, its cosine with the query, and its number, from 0."""

    name: str
    score: float
    number: int


class Folded(NamedTuple):
    """What folding-in of documents lost.

    documents : how many were added.
    lost : share of their squared length (of the weighted counts) that the space does not hold.
    lost_in_fit : the same of the documents of the fit.
    unknown : share of their words that the vocabulary does not have; None for counts.
    """

    documents: int
    lost: float
    lost_in_fit: float
    unknown: float | None


@dataclass(frozen=True, repr=False, kw_only=True)
class LSADecomposition(PrincipalComponents, kind="latent semantic analysis"):
    """X = U S V' of weighted counts (documents, terms), truncated and not centred.

    components : (k, p) V'.  scores : (n, k) U S, the coordinates of the documents, or None where
        they lie in the Zarr array ``settings["coordinates"]``.
    tokens : how texts were split, as JSON; "" where nothing is known.
    folded : of documents that were added: how many, their squared length and what the space holds.

    Documents are compared by U S^2 U', terms by V S^2 V': cosines of U S and of V S.
    Source: Deerwester, Dumais, Furnas, Landauer and Harshman 1990, JASIS 41(6), pages 397 to 399.
    """

    tokens: str = ""
    folded: Mapping[str, Any] = field(default_factory=dict)

    # -- coordinates ----------------------------------------------------------------------------

    @property
    def n_documents(self) -> int:
        """Documents that can be found: those of the fit, and those that were added."""
        return len(self.labels.samples)

    @property
    def document_coordinates(self) -> Any:
        """(documents, k) U S: an array, or the Zarr array to which the fit wrote them.

        Raises SourceError where that is not there any more, or belongs to another fit.
        """
        if self.scores is not None:
            return self.scores
        path = self.settings.get("coordinates")
        if path is None:
            raise InvalidInputError("this result has no coordinates of its documents")
        if marked(path) != self.mark:
            raise SourceError(
                f"{path} does not hold the coordinates of the documents of this model; put it "
                "there again, or fit again"
            )
        return open_written(path)

    @property
    def term_coordinates(self) -> Array:
        """(p, k) V S."""
        return np.asarray(self.require_components().T * self.singular_values)

    @property
    def mark(self) -> str:
        """What identifies this fit in the attributes of the array of its coordinates."""
        return hashlib.sha256(np.ascontiguousarray(self.require_components()).tobytes()).hexdigest()

    @property
    def lost(self) -> float:
        """Share of the squared length of the documents of the fit that the space does not hold."""
        return max(0.0, 1.0 - float(np.sum(self.explained_variance_ratio)))

    # -- names ----------------------------------------------------------------------------------

    @cached_property
    def vocabulary(self) -> list[str]:
        """The terms. Raises InvalidInputError where the fit had numbers alone."""
        if not self.labels.features.named:
            raise InvalidInputError(
                "the terms of this model have no names, so that texts cannot be counted: "
                "fit(X, terms=vectorizer.get_feature_names_out())"
            )
        return self.labels.features.names()

    @cached_property
    def places(self) -> dict[str, int]:
        """The number of each term."""
        return {term: i for i, term in enumerate(self.vocabulary)}

    @cached_property
    def splitting(self) -> Tokens:
        """How texts are split: as those of the fit were, else as scikit-learn does by default."""
        return Tokens.from_json(self.tokens, "the model") if self.tokens else Tokens()

    def place_of_term(self, word: str) -> int:
        """The number of a term, by itself or as texts are split. Raises InvalidInputError."""
        if word in self.places:
            return self.places[word]
        split = self.splitting.split(word)
        if len(split) == 1 and split[0] in self.places:
            return self.places[split[0]]
        raise InvalidInputError(f"{self._unknown([word])}")

    def place_of_document(self, document: int | str) -> int:
        """The number of a document, by its number or name. Raises InvalidInputError."""
        axis, n = self.labels.samples, self.n_documents
        if isinstance(document, (int, np.integer)) and not isinstance(document, bool):
            if not -n <= document < n:
                raise InvalidInputError(f"document {document}; expected a number below {n}")
            return int(document) % n
        names = axis.names()
        found = [i for i, name in enumerate(names) if name == str(document)]
        if len(found) != 1:
            near = difflib.get_close_matches(str(document), names[:ROWS], 3)
            hint = f"; there are {', '.join(near)}" if near and not found else ""
            count = f"{len(found)} have" if found else "none has"
            raise InvalidInputError(
                f"document {document!r:.80}: {count} this name{hint}. Or give its number, "
                f"0 to {n - 1}"
            )
        return found[0]

    def _unknown(self, words: Sequence[str]) -> str:
        """The message about words that the vocabulary does not have."""
        near = [one for word in words[:3] for one in difflib.get_close_matches(word, self.places)]
        hint = f" Near to them are {', '.join(dict.fromkeys(near))}." if near else ""
        return (
            f"{shorten(list(words))}: not among the {self.n_features} terms of this model.{hint} "
            "Terms are words as the texts of the fit were split, without those that were left out "
            "(stop_words, min_df, max_df, max_features)"
        )

    # -- answers --------------------------------------------------------------------------------

    def near_documents(self, point: Array, n: int, leave: int | None = None) -> list[Match]:
        """The n documents with the largest cosine with a point (k,).  leave : one to leave out."""
        parts = [_products(rows, point) for rows in self._pieces(self.document_coordinates)]
        return _ranked(np.concatenate(parts), self.labels.samples, n, leave)

    def near_terms(self, place: int, n: int) -> list[Match]:
        """The n terms with the largest cosine with a term."""
        terms = self.term_coordinates
        if not np.any(terms[place]):
            raise InvalidInputError(
                f"the term {self.labels.features.name(place)!r} has the weight 0 in this model, "
                "so that nothing is near to it"
            )
        return _ranked(_products(terms, terms[place]), self.labels.features, n, place)

    def _pieces(self, rows: Any) -> Iterator[Array]:
        step = getattr(rows, "chunks", (ROWS,))[0]  # a stored chunk is read once
        for start in range(0, self.n_documents, step):
            yield np.asarray(rows[start : min(start + step, self.n_documents)])

    def check_query(self, points: Array, unknown: Sequence[Sequence[str]]) -> None:
        """Refuse texts (m, k) of which the space holds nothing, with their unknown words."""
        for point, words in zip(points, unknown, strict=True):
            if np.any(point):
                continue
            if words:
                raise InvalidInputError(self._unknown(words))
            raise InvalidInputError(
                "a query without a word that counts: it is empty, or its words are stop words, or "
                "have the weight 0; expected some of the terms of the model"
            )

    def empty_documents(self) -> list[int]:
        """Numbers of the documents without a word that counts."""
        pieces = self._pieces(self.document_coordinates)
        empty = [~np.any(rows, axis=1) for rows in pieces]
        return [int(i) for i in np.flatnonzero(np.concatenate(empty))]

    def with_documents(
        self, points: Array, samples: AxisLabels, held: float, length: float
    ) -> LSADecomposition:
        """This result with further documents at these coordinates (m, k).

        samples : their names; where they only count, the numbers continue.
        held, length : sums of squares of the coordinates, and of the weighted counts.

        Raises InvalidInputError for a name that a document has already.
        """
        n, m = self.n_documents, len(points)
        names = samples.names() if samples.named else [str(i) for i in range(m)]
        if names == [str(i) for i in range(m)]:
            names = [str(n + i) for i in range(m)]
        if twice := sorted({*names} & {*self.labels.samples.names()}):
            raise InvalidInputError(
                f"{shorten(twice)}: documents of these names are there already; give names=..."
            )
        dim = "-".join(self.labels.samples.dims)
        axis = AxisLabels.concat([self.labels.samples, AxisLabels.plain(dim, m, names)])
        before = self.folded or {"documents": 0, "held": 0.0, "length": 0.0}
        folded = {
            "documents": before["documents"] + m,
            "held": before["held"] + held,
            "length": before["length"] + length,
        }
        fitted = np.ones(n, bool) if self.fitted is None else np.asarray(self.fitted)
        known = self.document_coordinates
        scores = None
        if self.scores is None:
            append_rows(self.settings["coordinates"], n, points.astype(known.dtype))
        else:
            scores = np.concatenate([known, points.astype(known.dtype)])
        return replace(
            self,
            scores=scores,
            labels=replace(self.labels, samples=axis),
            folded=folded,
            fitted=np.append(fitted, np.zeros(m, bool)),
        )

    # -- in words, and at rest ------------------------------------------------------------------

    @property
    def options_used(self) -> dict[str, Any]:
        """The settings, with those by which the texts were counted, as the counts keep them."""
        used = {k: v for k, v in super().options_used.items() if k not in OF_TEXTS}
        counting = dict(json.loads(self.tokens)) if self.tokens else {}
        words = counting.get("stop_words")
        if isinstance(words, list):
            counting["stop_words"] = f"{len(words)} words"
        return used | {name: value for name, value in counting.items() if value is not None}

    def notes(self) -> list[str]:
        """How many documents, what the space holds of them, and what was added."""
        held = 1.0 - self.lost
        lines = [f"documents  {self.n_documents}; the space holds {held:.1%} of the squared length"]
        if skipped := self.options_used.get("skipped"):
            lines.append(f"skipped    {skipped} documents whose text is missing or empty")
        if self.folded:
            held = self.folded["held"] / (self.folded["length"] or 1.0)
            lines.append(
                f"folded in  {self.folded['documents']} of them, of which it holds {held:.1%}"
            )
        return [*super().notes(), *lines]

    def check(self, where: str) -> None:
        """Check what was read. Raises DamagedSourceError, SourceError."""
        super().check(where)
        if self.tokens:
            Tokens.from_json(self.tokens, where)
        if self.scores is not None and len(self.scores) != self.n_documents:
            raise SourceError(
                f"{where} is damaged: it has {self.n_documents} documents, and coordinates of "
                f"{len(self.scores)}"
            )


def _products(rows: Array, point: Array) -> Array:
    """(rows,) cosines with a point; -inf for rows of length 0."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    products = rows @ (point / np.linalg.norm(point)).astype(rows.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lengths > 0, products / lengths, -np.inf)


def _ranked(cosines: Array, axis: AxisLabels, n: int, leave: int | None) -> list[Match]:
    whole_number("n", n)
    if leave is not None:
        cosines[leave] = -np.inf
    best = np.argsort(-cosines, kind="stable")[:n]
    best = best[np.isfinite(cosines[best])]
    score = np.clip(cosines[best], -1.0, 1.0)
    names = axis.names(best.tolist())
    return [Match(*one) for one in zip(names, score.tolist(), best.tolist(), strict=True)]
