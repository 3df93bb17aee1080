"""The plan: a function of source and settings alone, announced truly, refused in time."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_matrices import Sum, ToyMatrix, Unread, by_hand, make_plan, run

import streampca.sources
from streampca import PCA
from streampca.accumulators import Moments, Scatter
from streampca.errors import InvalidInputError, MemoryLimitError
from streampca.matrix import concat_features
from streampca.passes import (
    Candidate,
    PassPlan,
    PassSpec,
    Plan,
    block_edges,
    blocks,
    easier_axis,
    parse_nbytes,
    pass_spec,
    size,
)
from streampca.passes import memory as machine
from streampca.passes.plan import check_room
from tests.each import each

MiB = 2**20


SOURCES = {
    "tall float32": lambda: Unread((500_000, 512), "float32", (8192, 512)),
    "wide int8": lambda: Unread((3192, 500_568), "int8", (3192, 1024)),
    "both large": lambda: Unread((20_000, 30_000), "float64", (1000, 1000)),
    "by time": lambda: Unread((600, 60_000), "float32", (1, 60_000)),
    "small": lambda: Unread((50, 4), "float64", (50, 4)),
}


@pytest.mark.parametrize(
    ("shape", "chunks", "axes"),
    [
        ((3_000, 500_000), (3_000, 1_000), (1, 1)),
        ((500_000, 3_000), (1_000, 3_000), (0, 0)),
        ((50, 4), (50, 4), (0, 1)),
    ],
)
def test_an_axis_with_huge_blocks_is_not_walked_where_another_will_do(shape, chunks, axes) -> None:
    matrix = Unread(shape, "float32", chunks)
    assert (easier_axis(matrix), easier_axis(matrix, preferred=1)) == axes


# -- the same plan everywhere ------------------------------------------------------------------


def upset(monkeypatch: Any, seed: int) -> None:
    """Fake free memory, core counts, timings and what else a plan must not look at."""
    rng = random.Random(seed)
    clock = iter(lambda: rng.random() * 1e9, None)
    memory = rng.choice([None, 10**9, 10**13])
    monkeypatch.setattr(machine, "available_nbytes", lambda: memory)
    monkeypatch.setattr(machine, "resident_nbytes", lambda: rng.randrange(10**10))
    monkeypatch.setattr(machine, "peak_nbytes", lambda: rng.randrange(10**10))
    monkeypatch.setattr(machine, "_cgroup_limit", lambda: memory)
    monkeypatch.setattr(machine, "_proc_nbytes", lambda file, key: memory)
    cores = rng.randrange(1, 200)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    here = threading.get_ident()  # event loops of other threads must not lose their clock
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        real = getattr(time, name)
        fake = lambda real=real: next(clock) if threading.get_ident() == here else real()  # noqa: E731
        monkeypatch.setattr(time, name, fake)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@pytest.mark.parametrize("limit", [None, "400MiB", "2GiB"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_json_is_byte_identical_on_every_machine(source: Callable[[], Any], limit: Any) -> None:
    def plan() -> str:
        try:
            return PCA(3, memory_limit=limit).plan(source()).to_json()
        except MemoryLimitError as error:
            return str(error)

    first = plan()
    for seed in range(5):
        with pytest.MonkeyPatch.context() as monkeypatch:
            upset(monkeypatch, seed)
            found = plan()
        assert found == first


PROGRAM = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import streampca.sources
from streampca import PCA
print(PCA(5).plan(streampca.sources.open(sys.argv[1])).to_json())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no core affinity on this system")
def test_json_is_byte_identical_in_another_process_on_one_core(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=(100_000, 300), chunks=(1000, 100), dtype="float32")
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment,
    )
    assert done.stdout.rstrip("\n") == PCA(5).plan(streampca.sources.open(path)).to_json()


def test_json_says_what_is_announced() -> None:
    plan = PCA(5).plan(SOURCES["both large"]())
    document = json.loads(plan.to_json())
    assert (
        document["reads"]
        == plan.reads
        == sum(p["reads"] * p["times_at_most"] for p in document["passes"])
    )
    assert document["bytes"] == plan.nbytes
    assert document["peak_bytes"] == plan.peak_nbytes
    assert document["solver"] == plan.solver
    assert document["shape"] == [20_000, 30_000]
    largest = max(sum(t.values()) for name, t in plan.memory.items() if name != "process")
    assert plan.peak_nbytes == sum(plan.memory["process"].values()) + largest
    assert all(f"{one.reads} chunk reads" in str(plan) for one in plan.passes)
    assert "<pre>PCA of 20000 samples x 30000 features" in plan._repr_html_()


FEW_LARGE = {  # what the solver phase holds most of, by shape and settings
    "components": (Unread((300, 2_000_000), "int8", (300, 10_000)), {"svd_solver": "gram"}),
    "eigenproblem": (
        Unread((3000, 9000), "float64", (3000, 500)),
        {"n_components": None, "svd_solver": "gram", "components": False},
    ),
    "scatter": (Unread((90_000, 3000), "float32", (500, 3000)), {"svd_solver": "scatter"}),
    "R factor and its SVD": (Unread((90_000, 900), "f4", (500, 900)), {"svd_solver": "tsqr"}),
    "searched space": (Unread((90_000, 90_000), "f4", (900, 900)), {"svd_solver": "randomized"}),
    "kept for the next fit": (
        Unread((90_000, 5000), "float32", (500, 5000)),
        {"svd_solver": "scatter", "warm_start": True},
    ),
}


@pytest.mark.parametrize(("name", "case"), FEW_LARGE.items(), ids=FEW_LARGE.keys())
def test_what_the_solver_holds_is_called_what_it_is(name: str, case: Any) -> None:
    """Statistics of two million variants were once a "dense solver" of 427 MiB."""
    matrix, settings = case
    terms = PCA(**{"n_components": 5} | settings).plan(matrix).memory["solver"]
    assert terms[name] == max(terms.values())
    assert "dense solver" not in terms


def test_other_blocks_give_another_json() -> None:
    plans = {
        PCA(5).plan(Unread((100_000, 512), "float32", (chunk, 512))).to_json()
        for chunk in (1000, 1001)
    }
    assert len(plans) == 2


# -- refusal -----------------------------------------------------------------------------------

SETTINGS = {
    "auto": {},
    "tsqr": {"svd_solver": "tsqr"},
    "scatter of correlations": {"svd_solver": "scatter", "scale": "std"},
    "imputed": {"missing": "mean"},
    "spectrum only": {"components": False},
    "a share": {"n_components": 0.9},
}


@pytest.mark.soak
@each("more", SETTINGS.values())
@each("name", ["tall float32", "wide int8", "by time", "small"])
def test_a_refusal_names_the_smallest_limit(name: str, more: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "weight_of", lambda projected: 0)  # no more than planned
    matrix = SOURCES[name]()
    settings_ = {"n_components": 2} | more

    def plan(limit: Any) -> Plan:
        return PCA(memory_limit=limit, **settings_).plan(matrix)

    with pytest.raises(MemoryLimitError) as caught:
        plan("1MiB")
    message = str(caught.value)
    smallest = caught.value.smallest // MiB
    assert f"smallest limit that would do is memory_limit='{smallest}MiB'" in message
    accepted = plan(f"{smallest}MiB")
    assert accepted.peak_nbytes <= accepted.memory_limit == smallest * MiB
    with pytest.raises(MemoryLimitError):
        plan(f"{smallest - 1}MiB")
    assert re.search(r"largest term is .+ in .+\)", message)
    process = sum(accepted.memory["process"].values())  # without which small limits are a riddle
    assert f"the process itself takes {size(process)}" in message


def test_a_larger_limit_never_refuses_what_a_smaller_one_allows() -> None:
    matrix = SOURCES["both large"]()
    allowed = []
    for limit in range(200, 30_000, 700):
        try:
            plan = PCA(2, memory_limit=limit * MiB).plan(matrix)
        except MemoryLimitError:
            allowed.append(False)
        else:
            allowed.append(True)
            assert plan.peak_nbytes <= limit * MiB
    assert allowed == sorted(allowed)
    assert any(allowed)


def test_fit_is_refused_before_anything_is_read(monkeypatch: Any) -> None:
    matrix = ToyMatrix(np.random.default_rng(0).normal(size=(300, 8)))
    with pytest.raises(MemoryLimitError, match="smallest limit"):
        PCA(2, memory_limit="2MiB", scheduler="threads").fit(matrix)
    monkeypatch.setattr(machine, "available_nbytes", lambda: 64 * MiB)
    with pytest.raises(MemoryLimitError, match=r"this machine .* gives 64.0 MiB") as refused:
        PCA(2, scheduler="threads").fit(matrix)
    named = re.search(r"memory_limit='(\d+)MiB'", str(refused.value))
    held = re.search(r"in addition to the ([\d.]+) MiB that this process holds", str(refused.value))
    assert named is not None
    left = 64 - (float(held[1]) if held else 0.0)
    assert abs(int(named[1]) - (left if left > 0 else 64)) <= 1
    assert not matrix.log
    monkeypatch.setattr(machine, "available_nbytes", lambda: None)  # a system that does not say
    PCA(2, scheduler="threads", progress=False).fit(matrix)
    assert matrix.log


def test_no_candidate() -> None:
    with pytest.raises(InvalidInputError, match="no solver"):
        make_plan(Unread((10, 10), "float64"), "X", [])


def test_without_a_limit_the_default_budget_orders_the_candidates() -> None:
    matrix = Unread((10_000, 100), "float64")
    huge = Candidate("huge", "", (pass_spec("a", matrix, 0, {"s": Scatter()}, kept_nbytes=2**40),))
    lean = Candidate("lean", "", (pass_spec("a", matrix, 0, {"s": Scatter()}),))
    plan = make_plan(matrix, "X", [huge, lean])
    assert plan.solver == "lean"
    assert len(plan.rejected) == 1
    assert plan.rejected[0].startswith("huge: needs at least 1024")
    assert "not taken huge" in str(plan)
    assert make_plan(matrix, "X", [huge]).solver == "huge"  # left to the machine to refuse
    with pytest.raises(MemoryLimitError, match="1024 GiB"):
        check_room(make_plan(matrix, "X", [huge]))


# -- limits in words ---------------------------------------------------------------------------

LIMITS = [
    (None, None),
    (1, 1),
    (1.9, 1),
    (2**40, 2**40),
    (np.int64(5), 5),
    ("512MiB", 512 * 2**20),
    ("2GB", 2 * 10**9),
    ("2 gb", 2 * 10**9),
    (" 1.5 GiB ", 3 * 2**29),
    ("7", 7),
    ("7B", 7),
    ("1.kB", 1000),
    (".5MB", 500_000),
    ("3TiB", 3 * 2**40),
    ("1TB", 10**12),
    ("10KIB", 10240),
]


@each("text, nbytes", LIMITS)
def test_parse_nbytes(text: Any, nbytes: int | None) -> None:
    found = parse_nbytes(text)
    assert found == nbytes
    assert found is None or type(found) is int


BAD = [
    "",
    "lots",
    "12 parsecs",
    "-1GB",
    "1.2.3MB",
    ".",
    "GB",
    "1e9",
    0,
    -5,
    0.3,
    "0.2B",
    float("nan"),
    float("inf"),
    True,
    [1],
    b"1GB",
]


@each("text", BAD)
def test_parse_nbytes_refuses(text: Any) -> None:
    with pytest.raises(InvalidInputError, match="memory_limit="):
        parse_nbytes(text)


def test_size() -> None:
    found = [size(n) for n in (0, 1023, 1024, 1536, 102_400, 5 * MiB, 2**30, 3 * 2**40)]
    assert found == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "100 KiB",
        "5.0 MiB",
        "1.0 GiB",
        "3072 GiB",
    ]


# -- blocks ------------------------------------------------------------------------------------


class Irregular(Unread):
    """Chunks of any lengths along axis 0."""

    def __init__(self, lengths: list[int], across: int, known: bool) -> None:
        super().__init__((sum(lengths), across), "float64")
        self.bounds = np.cumsum([0, *lengths]) if known else None

    def chunk_edges(self, axis: int) -> Any:
        return self.bounds


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    across=st.integers(1, 50),
    known=st.booleans(),
    block=st.sampled_from([64, 1000, 4096, 10**6]),
    share=st.sampled_from([1.0, 0.25, 0.0]),
    part=st.booleans(),
    data=st.data(),
)
def test_blocks_are_unions_of_chunks(
    lengths: list[int], across: int, known: bool, block: int, share: float, part: bool, data: Any
) -> None:
    matrix = Irregular(lengths, across, known)
    n = matrix.shape[0]
    bounds = np.arange(n + 1) if matrix.bounds is None else matrix.bounds
    rows = None
    if part:  # a panel: any two bounds of chunks
        rows = tuple(
            sorted(int(bounds[data.draw(st.integers(0, len(bounds) - 1))]) for _ in range(2))
        )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(blocks, "BLOCK_NBYTES", block)
        monkeypatch.setattr(blocks, "BLOCK_LENGTH", 4)
        edges = block_edges(matrix, 0, share, rows)
        again = block_edges(matrix, 0, share, rows)
    start, stop = rows or (0, n)
    assert edges[0] == start
    assert edges[-1] == stop
    assert np.all(np.diff(edges) > 0)
    assert np.isin(edges, bounds).all()
    np.testing.assert_array_equal(edges, again)
    assert edges.dtype == np.int64
    # two neighbours together would be more than what is wanted: blocks are not needlessly small
    wanted = max(1, int(block * share) // (across * 8))
    together = edges[2:] - edges[:-2]
    assert np.all(together[: len(together) - 1] > wanted)


@pytest.mark.parametrize("share", [1.0, 0.25, 0.0])
def test_blocks_of_real_sizes(share: float) -> None:
    matrix = SOURCES["wide int8"]()
    edges = block_edges(matrix, 1, share)
    assert np.all(edges[:-1] % 1024 == 0)
    assert edges[-1] == 500_568
    longest = int(np.diff(edges).max())
    work = longest * 3192 * 4  # of the block in the working dtype
    assert work <= max(blocks.BLOCK_NBYTES, 1024 * 3192 * 4)


# -- spans -------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(n_blocks=st.integers(0, 300), span=st.integers(1, 20), ordered=st.booleans())
def test_spans_cover_all_blocks_in_order(n_blocks: int, span: int, ordered: bool) -> None:
    plan = PassPlan("x", 0, np.arange(n_blocks + 1), span, 0, 0, 0.0, ordered)
    assert [i for one in plan.spans for i in one] == list(range(n_blocks))
    assert all(len(one) > 0 for one in plan.spans)
    if ordered:
        assert len(plan.spans) <= 1
    else:
        assert all(len(one) <= span for one in plan.spans)


@pytest.mark.parametrize("n_blocks", [1, 2, 7, 8, 20, 62, 96, 150, 1000])
def test_spans_of_a_plan(n_blocks: int) -> None:
    """At most OPEN_BLOCKS in a span (float32 sums), and enough spans for two lanes to share."""
    matrix = Unread((n_blocks * 1000, 8), "float64", (1000, 8))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(blocks, "BLOCK_NBYTES", 1000 * 8 * 8)
        spec = pass_spec("p", matrix, 0, {"m": Moments()})
        (one,) = make_plan(matrix, "X", [Candidate("s", "", (spec,))]).passes
    assert one.n_blocks == n_blocks
    lengths = [len(span) for span in one.spans]
    assert max(lengths) <= 16
    lanes = [0, 0]
    for length in lengths:  # the lane that is free takes the next
        lanes[lanes.index(min(lanes))] += length
    assert max(lanes) <= n_blocks / 2 + max(1, 0.1 * n_blocks)


def test_length_of_spans() -> None:
    """One block where there are few; at least 16 spans, and at most OPEN_BLOCKS blocks in one.
    Narrow rows, whose accumulators are merged at no cost, have spans for 256 lanes."""
    counts = (1, 7, 8, 47, 48, 255, 256, 10**6)
    assert [blocks.span_length(n, 3192) for n in counts] == [1, 1, 2, 2, 3, 15, 16, 16]
    assert [blocks.span_length(n, 500) for n in counts] == [1, 1, 1, 2, 2, 2, 2, 16]
    assert blocks.span_length(100, 0) == 2


# -- reads announced and reads counted ---------------------------------------------------------

STORES: dict[str, dict[str, Any]] = {
    "v3, chunks of rows": {"chunks": (50, 60)},
    "v3, chunks of columns": {"chunks": (700, 7)},
    "v3, grid": {"chunks": (64, 17)},
    "v2, grid": {"chunks": (64, 17), "zarr_format": 2},
    "v2, one chunk": {"chunks": (700, 60), "zarr_format": 2},
    "v3, sharded": {"chunks": (10, 20), "shards": (100, 60)},
    "v3, sharded grid": {"chunks": (10, 5), "shards": (100, 20)},
    "v3, uncompressed": {"chunks": (64, 17), "compressors": None},
    "v3, uncommon codec": {
        "chunks": (64, 17),
        "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
    },
    "v2, Fortran order": {"chunks": (64, 17), "zarr_format": 2, "order": "F"},
}


@each("axis", [0, 1])
@each("store", STORES.values())
def test_reads_announced_are_reads_counted(
    tmp_path: Path, store: dict[str, Any], axis: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_NBYTES", 16 * 1024)
    monkeypatch.setattr(blocks, "BLOCK_LENGTH", 4)
    x = np.random.default_rng(0).integers(-9, 9, size=(700, 60)).astype(np.float32)
    path = str(tmp_path / "x.zarr")
    array = zarr.create_array(path, shape=x.shape, dtype=x.dtype, **store)
    array[...] = x
    matrix = streampca.sources.open(path)
    spec = pass_spec("p", matrix, axis, {"m": Moments()})
    plan = make_plan(matrix, "X", [Candidate("s", "", (spec,))])
    done = run(
        plan.passes[0],
        matrix,
        accumulators={"m": Moments()},
        execution=by_hand(scheduler="threads"),
    )
    np.testing.assert_allclose(done["m"].mean(), x.mean(axis=0, dtype=float), atol=1e-12)
    stored = store.get("shards", store["chunks"])
    assert plan.reads == (-(-700 // stored[0])) * (-(-60 // stored[1]))  # each stored chunk once
    assert done.cost.reads == plan.reads
    assert done.cost.nbytes == plan.nbytes == x.nbytes
    assert done.cost.stored > 0


def test_reads_of_a_join_are_those_of_its_parts(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(700, 60))
    paths = [str(tmp_path / name) for name in ("a.zarr", "b.zarr")]
    zarr.create_array(paths[0], data=x, chunks=(100, 30))
    zarr.create_array(paths[1], data=x, chunks=(70, 60))
    joint = concat_features(*(streampca.sources.open(path) for path in paths))
    for axis, reads in ((0, 14 + 10), (1, 14 + 10)):
        spec = pass_spec("p", joint, axis, {"m": Moments()})
        (one,) = make_plan(joint, "X", [Candidate("s", "", (spec,))]).passes
        done = run(
            one, joint, accumulators={"m": Moments()}, execution=by_hand(scheduler="threads")
        )
        assert done.cost.reads == one.reads == reads


def test_a_plan_of_part_of_the_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=np.arange(1400.0).reshape(700, 2), chunks=(50, 2))
    matrix = streampca.sources.open(path)
    spec = pass_spec("p", matrix, 0, {"s": Sum()}, rows=(100, 350))
    (one,) = make_plan(matrix, "X", [Candidate("s", "", (spec,))]).passes
    done = run(one, matrix, accumulators={"s": Sum()}, execution=by_hand(scheduler="threads"))
    assert done.cost.reads == one.reads == 5
    assert done["s"].rows == 250
    assert one.to_dict()["from"] == 100
    assert one.to_dict()["to"] == 350


def test_an_ordered_pass_says_that_it_runs_on_one_lane() -> None:
    matrix = ToyMatrix(np.broadcast_to(1.0, (2_000_000, 8)), chunk=10_000)
    for ordered, words in ((True, "runs on   1 lane,"), (False, "runs on   2 lanes,")):
        spec = PassSpec("scan", 0, 0, 0, ordered=ordered)
        plan = make_plan(matrix, "scan", [Candidate("scan", "", (spec,))])
        assert words in str(plan), str(plan)
