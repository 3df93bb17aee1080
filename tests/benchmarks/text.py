"""Texts beside scikit-learn and gensim, in one run: ``python -m tests.benchmarks.text``.

Proves the README's row of LSA. A million short documents are simulated (words by Zipf's law, from
their topic or from all) and lie in one file, a document a line. Each tool goes from that file to 32
factors of the same tf-idf matrix in a fresh process: streampca within 512 MiB, scikit-learn's
vectorizer and TruncatedSVD in memory, gensim's Dictionary, TfidfModel (with scikit-learn's formula)
and LsiModel. The reference is ARPACK to 1e-10 in float64; errors are those of the worst of the 32
singular values. Seconds are of processors; wall times mean little on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streampca.models.contract.request import TOL
from tests.benchmarks.measure import measure, peak_mb, record, recordable

K = 32
MIN_DF = 20
LIMIT = "512MiB"
TOPICS, OF_TOPIC = 120, 300  # topics, and words of each
WORDS = 400_000
ROWS = 20_000  # that are drawn at once
COUNTING = f"""
import sys, streampca
with open(sys.argv[1]) as lines:
    streampca.open_texts(lines, sys.argv[2], min_df={MIN_DF}, memory_limit={LIMIT!r})
"""


# -- data ---------------------------------------------------------------------------


def write(path: Path, n: int, seed: int = 0) -> None:
    """n documents, one a line: half of the words from the topic of the document."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(200, 20_000, (TOPICS, OF_TOPIC))
    size = 1.0 / np.arange(1, TOPICS + 1) ** 0.6  # topics differ in size
    with path.open("w") as file:
        for start in range(0, n, ROWS):
            rows = min(ROWS, n - start)
            lengths = 4 + rng.poisson(8, rows)
            of = np.repeat(rng.choice(TOPICS, rows, p=size / size.sum()), lengths)
            general = zipf(rng, len(of), WORDS)
            special = topics[of, zipf(rng, len(of), OF_TOPIC)]
            words = np.where(rng.random(len(of)) < 0.5, special, general)
            text = np.char.add("w", words.astype("U7"))
            ends = np.cumsum(lengths)
            file.writelines(" ".join(one) + "\n" for one in np.split(text, ends[:-1]))


def zipf(rng: np.random.Generator, count: int, most: int) -> np.ndarray[Any, Any]:
    """Ranks from 0 with probabilities as 1 / (rank + 1), by inversion."""
    return np.minimum(np.floor(most ** rng.random(count)) - 1, most - 1).astype(np.int64)


# -- tools --------------------------------------------------------------------------


def ours(path: str) -> dict[str, Any]:
    """Counted into Zarr by one process, weighted, decomposed and searched by another."""
    import streampca

    warnings.simplefilter("ignore")  # what is not certified is printed
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        counts = str(Path(folder) / "counts.zarr")
        subprocess.run([sys.executable, "-c", COUNTING, path, counts], check=True)
        counting = resource.getrusage(resource.RUSAGE_CHILDREN)
        counted = counting.ru_utime + counting.ru_stime
        model = streampca.LSA(
            K,
            weighting="tf-idf",
            coordinates=str(Path(folder) / "documents.zarr"),
            memory_limit=LIMIT,
            progress=False,
        )
        model.fit(counts)
        bound = model.certificate_.angle_bound
        certain = np.count_nonzero(bound <= TOL)
        planned = model.plan_.peak_nbytes / 1e6
        cpu = counted + time.process_time() - begun
        peak = peak_mb()
        best = model.search("w300 w1000 w5000", 3)
    return {
        "cpu": cpu,
        "counted": counted,
        "values": model.singular_values_,
        "peak_mb": peak,
        "planned_mb": planned,
        "passes": len(model.cost_),
        "shape": (model.result_.n_samples, model.result_.n_features),
        "note": f"{certain} of {len(bound)} factors certified to {TOL:g}, worst angle <= "
        f"{bound.max():.0e}; counting peaked at "
        f"{counting.ru_maxrss * 1024 / 1e6:.0f} MB, a search (with scikit-learn) at "
        f"{peak_mb():.0f} MB; best match {best[0].score:.2f}",
    }


def weighted(path: str) -> Any:
    """The tf-idf matrix in memory, as scikit-learn makes it."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    with open(path) as lines:
        return TfidfVectorizer(min_df=MIN_DF).fit_transform(lines)


def scikit_learn(path: str) -> dict[str, Any]:
    """``TfidfVectorizer`` and ``TruncatedSVD`` with their defaults."""
    from sklearn.decomposition import TruncatedSVD

    begun = time.process_time()
    x = weighted(path)
    counted = time.process_time() - begun
    model = TruncatedSVD(K, random_state=0)
    model.fit_transform(x)
    return {
        "cpu": time.process_time() - begun,
        "counted": counted,
        "shape": x.shape,
        "values": model.singular_values_,
    }


class Lines:
    """The words of each line of a file, read anew each time."""

    def __init__(self, path: str, function: Any = None) -> None:
        self.path, self.function = path, function

    def __iter__(self) -> Iterator[Any]:
        with open(self.path) as lines:
            for line in lines:
                words = line.split()
                yield words if self.function is None else self.function(words)


def gensim(path: str) -> dict[str, Any]:
    """A dictionary, its idf, and one-pass ``LsiModel``, all streamed from the file."""
    from gensim.corpora import Dictionary
    from gensim.models import LsiModel, TfidfModel

    begun = time.process_time()
    dictionary = Dictionary(Lines(path))
    dictionary.filter_extremes(no_below=MIN_DF, no_above=1.0, keep_n=None)
    idf = TfidfModel(
        dictionary=dictionary, wglobal=lambda df, n: np.log((1.0 + n) / (1.0 + df)) + 1.0
    )
    counted = time.process_time() - begun
    corpus = Lines(path, lambda words: idf[dictionary.doc2bow(words)])
    model = LsiModel(corpus, num_topics=K, id2word=dictionary, random_seed=0)
    shape = (dictionary.num_docs, len(dictionary))
    return {
        "cpu": time.process_time() - begun,
        "counted": counted,
        "values": model.projection.s,
        "shape": shape,
        "note": "coordinates of documents not kept",
    }


TOOLS = {"streampca, 512 MiB": ours, "scikit-learn, in memory": scikit_learn, "gensim LSI": gensim}


def reference(path: Path) -> np.ndarray[Any, Any]:
    """The singular values, by ARPACK to 1e-10; kept beside the texts."""
    import scipy.sparse.linalg

    kept = path.with_suffix(".npy")
    if not kept.exists():
        s = scipy.sparse.linalg.svds(
            weighted(str(path)), K, tol=1e-10, return_singular_vectors=False, random_state=0
        )
        np.save(kept, np.sort(s)[::-1])
    return np.asarray(np.load(kept))


# -- measuring ----------------------------------------------------------------------


def run(name: str, path: str) -> None:
    """In the fresh process: one tool, then its errors."""
    begun = time.perf_counter()
    row = TOOLS[name](path)
    row = {"seconds": time.perf_counter() - begun, "peak_mb": peak_mb()} | row
    values, exact = np.asarray(row.pop("values"), "f8"), reference(Path(path))
    errors = np.abs(values / exact[: len(values)] - 1.0)
    row |= {"found": len(values), "value": float(errors.max()), "worst": int(errors.argmax()) + 1}
    print("RESULT " + json.dumps(row))


def main() -> None:
    """Write the texts once, run every tool, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="*", choices=TOOLS)
    parser.add_argument("--folder", help="keep the texts here, and use them again")
    recordable(parser, __file__)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run(*arguments.child)
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(arguments.folder or temporary) / "texts.txt"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, arguments.documents)
        reference(path)
        print(f"{arguments.documents} documents, {path.stat().st_size / 1e6:.0f} MB, {K} factors")
        print(
            f"{'':<26}{'cpu s':>8}{'of it counting':>16}{'wall s':>8}{'peak MB':>9}"
            f"{'factors':>9}{'error':>9}"
        )
        rows = []
        for name in arguments.only or TOOLS:
            row = measure("tests.benchmarks.text", name, str(path), python=sys.executable)
            if "error" in row:
                print(f"{name:<26}  not run: {row['error']}", flush=True)
                rows.append({"name": name, "error": row["error"]})
                continue
            kept = ("cpu", "peak_mb", "planned_mb", "passes", "note")
            told = {key: row[key] for key in kept if key in row}
            rows.append({"name": name, **told, "relative_error": row["value"]})
            print(
                f"{name:<26}{row['cpu']:>8.0f}{row['counted']:>16.0f}{row['seconds']:>8.0f}"
                f"{row['peak_mb']:>9.0f}{row['found']:>9}{row['value']:>9.1e}  "
                f"{row['shape']}, worst is factor {row['worst']}. {row.get('note', '')}",
                flush=True,
            )
    record(arguments.record, rows, "scikit-learn", "gensim")


if __name__ == "__main__":
    main()
