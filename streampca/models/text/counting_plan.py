"""The memory of counting texts: what a limit leaves for each part, and what they took."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from streampca.errors import MemoryLimitError
from streampca.matrix import ChunkedMatrix
from streampca.models.text.vocabulary import BATCH, ENTRY_NBYTES, TERM_NBYTES, TermCounts
from streampca.passes import MemoryUse, Plan, parse_nbytes
from streampca.passes.memory import (
    INTERPRETER_NBYTES,
    LIBRARY_NBYTES,
    THREAD_NBYTES,
    MiB,
    as_limit,
    peak_nbytes,
    resident_nbytes,
    size,
)
from streampca.passes.plan import check_room, warn_of_excess
from streampca.sources.texts.records import PIECE

MOST_TERMS = 1_000_000  # in memory at a time, without a limit
TOKEN_NBYTES = 64  # of a token that waits to be counted, with its copies
CHARACTER_NBYTES = 16  # of a piece of a text with its copies
SPLIT_NBYTES = 60  # of a term that begins at a character
DOCUMENT_NBYTES = 64  # of a document, without its name
KEPT_NBYTES = 260  # of a term that stays, without its characters: lists, a dictionary, labels
SHARE = 6  # of what the limit leaves: of a batch, and of documents; two of the dictionary and texts
WRITING_NBYTES = 10 * MiB  # of the counts that wait for a whole chunk
LEAST_NBYTES = 32 * MiB  # that these must have


@dataclass(frozen=True)
class Budget:
    """What a memory limit leaves for counting; None where there is no limit.

    terms : that the dictionary holds.  batch : tokens that are counted at once.
    texts : bytes of a text that has to be held whole.  documents : of all names and lengths.
    total : bytes of all of them.
    """

    terms: int = MOST_TERMS
    batch: int = BATCH
    texts: int | None = None
    documents: int | None = None
    total: int | None = None

    @classmethod
    def within(cls, memory_limit: int | str | None, terms_a_character: int) -> Self:
        """Of a limit. Raises MemoryLimitError where it does not do."""
        limit = parse_nbytes(memory_limit)
        least = plan_of(_pieces(terms_a_character) | {"least": LEAST_NBYTES}, {}, (0, 0), limit)
        if limit is None:
            check_room(least)
            return cls()
        if (total := limit - least.peak_nbytes + LEAST_NBYTES) < LEAST_NBYTES:
            smallest = -(-least.peak_nbytes // MiB) * MiB
            raise MemoryLimitError(
                f"memory_limit={size(limit)} is too small for counting texts: the process and a "
                f"piece of a text need {size(least.peak_nbytes)}. The smallest limit that would do "
                f"is memory_limit={as_limit(smallest)!r}.",
                smallest,
            )
        check_room(least)
        share = total // SHARE
        batch = min(BATCH, share // (TOKEN_NBYTES + TERM_NBYTES))
        return cls(min(MOST_TERMS, 2 * share // TERM_NBYTES), batch, 2 * share, share, total)

    def kept(self, terms: TermCounts, documents: int) -> int | None:
        """How many terms may stay with so many bytes of documents; None: any number."""
        if self.total is None:
            return None
        rest = self.total - documents - WRITING_NBYTES
        if terms.dictionaries == 0:
            rest -= terms.longest
        return max(0, rest // (KEPT_NBYTES + TERM_NBYTES - ENTRY_NBYTES))


def documents_nbytes(terms: TermCounts, names_nbytes: int) -> int:
    """Bytes of the documents so far: lengths, places and names."""
    return terms.documents * DOCUMENT_NBYTES + names_nbytes


def _pieces(terms_a_character: int) -> dict[str, int]:
    return {"texts": PIECE * (CHARACTER_NBYTES + SPLIT_NBYTES * terms_a_character)}


def plan_of_counts(
    terms: TermCounts,
    vocabulary: Sequence[str],
    names_nbytes: int,
    writing_nbytes: int,
    held_nbytes: int,
    terms_a_character: int,
    memory_limit: int | str | None,
) -> Plan:
    """The plan of a count, from the sizes of what came.

    names_nbytes : of the names of documents.  held_nbytes : of the largest record of a table.
    """
    documents = documents_nbytes(terms, names_nbytes)
    kept = sum(map(sys.getsizeof, vocabulary)) + KEPT_NBYTES * len(vocabulary)
    pieces = _pieces(terms_a_character)
    waiting = min(terms.tokens, terms.batch + PIECE * terms_a_character)
    counting = {
        "texts": pieces["texts"] + held_nbytes,
        "batch": waiting * TOKEN_NBYTES,
        "dictionary": terms.longest if terms.fixed is None else kept,
        "documents": documents,
    }
    writing = {
        "dictionary": 0 if terms.dictionaries else terms.longest,
        "batch": waiting * TOKEN_NBYTES,
        "vocabulary": kept,
        "documents": documents,
        "writing": writing_nbytes,
    }
    return plan_of(
        counting, writing, (terms.documents, len(vocabulary)), parse_nbytes(memory_limit)
    )


def plan_of(
    counting: dict[str, int], writing: dict[str, int], shape: tuple[int, int], limit: int | None
) -> Plan:
    """A plan without passes over a matrix: texts are read once."""
    none = ("compiled kernels", "BLAS buffers", "labels", "source", "X in memory")
    process = {
        "interpreter": INTERPRETER_NBYTES,
        "sklearn": LIBRARY_NBYTES["sklearn"],
        "threads": 2 * THREAD_NBYTES,
        **dict.fromkeys(none, 0),
    }
    memory = {"process": process, "counting texts": counting, "writing counts": writing}
    return Plan(
        "counting texts",
        "dictionary",
        "texts are read once",
        shape,
        "int32",
        "int32",
        "",
        1,
        0,
        (),
        memory,
        limit,
    )


def planned_opening(
    matrix: ChunkedMatrix, memory_limit: int | str | None, process: Mapping[str, int]
) -> dict[str, Mapping[str, int]]:
    """The memory of counting by phase, where it was done here for a fit with that limit; else {}.

    process : terms of the fit's. Its libraries load after counting, which had their memory.
    Counts of another process, or counted under another limit, are a source like any other.
    """
    record = matrix.opening
    if record is None or record.plan.memory_limit != parse_nbytes(memory_limit):
        return {}
    counting = dict(record.plan.memory)
    later = sum(process.values()) - sum(counting.pop("process").values())
    return {
        name: {"beyond the fit's libraries": max(0, sum(terms.values()) - later)}
        for name, terms in counting.items()
    }


@dataclass(frozen=True)
class CountingRecord:
    """What counting took in this process: its plan, resident bytes at its begin, peak and end."""

    plan: Plan
    held: int
    peak: int
    ended: int

    @classmethod
    def of(cls, plan: Plan, use: MemoryUse) -> Self:
        """Of a count that has just ended. Warns where it exceeded its plan."""
        warn_of_excess(plan, use)
        return cls(plan, use.held, use.peak_nbytes(), resident_nbytes())

    def followed_by(self, peak: int, held: int) -> dict[str, int]:
        """``peak_bytes`` and ``held_bytes`` of counting and a fit after it, as if they were one.

        peak, held : of the fit. What the process took in between counts in addition to both.
        """
        more = max(0, held - self.ended)
        peak = max(peak, self.peak, min(self.peak + more, peak_nbytes()))
        return {"peak_bytes": peak, "held_bytes": self.held + more}
