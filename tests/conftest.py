"""What several test modules use."""

import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# what a cluster does every few milliseconds for its dashboard: it took a tenth of a core each
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "False")
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL", "1s")

# plans count two threads, and so do measurements of memory; tests that mean others say so
os.environ.setdefault("OMP_NUM_THREADS", "2")
# the processes of pytest share the cores: threads of NumPy's BLAS that wait for work would spin
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# of examples that a test asks for no other number of; how long one takes is the machine's affair.
# They are the same in every run: what a rare one finds is for whoever searches, with
# --hypothesis-profile=search, and not for whoever's change is tested that day.
hypothesis.settings.register_profile(
    "streampca", max_examples=20, deadline=None, derandomize=True, database=None
)
hypothesis.settings.register_profile(
    "search", max_examples=400, deadline=None, derandomize=False, print_blob=True
)
hypothesis.settings.load_profile("streampca")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Files are flushed when the system likes: what ``fsync`` is for, a power failure, no test of
    this process can see, and those that count its calls put their own in its place."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)
        yield


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored; here and in child processes it counts,
    or tests that press Ctrl-C would wait for ever."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# tests whose many cases take longer than half a second together
LONG_GRIDS = frozenset(Path(__file__).with_name("long_grids.txt").read_text().split())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-grids",
        action="store_true",
        help="all cases of the tests in tests/long_grids.txt; else two of three are for -m soak",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Two of three cases of a long grid are soak tests: their neighbours go through the same code.

    Where tests are named (``file.py::test``) all of their cases run.
    """
    named = any("::" in str(one) for one in config.invocation_params.args)
    if named or config.getoption("whole_grids"):
        return
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (test := item.nodeid.partition("[")[0]) in LONG_GRIDS:
            grids.setdefault(test, []).append(item)
    for test, cases in grids.items():
        for number, item in enumerate(cases[1:-1], len(test)):  # other cases of other tests
            if number % 3:
                item.add_marker(pytest.mark.soak)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported and collected is kept: looking for garbage in it takes a third of the time,
    in each of several processes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """The half million objects of the collected tests stay: nothing looks for garbage in them, and
    in what tests leave to one another less often than in a short program."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """Of NumPy's and SciPy's products here: two test processes of two threads each wait for one
    another more than they compute. Processes that tests start are left as they are."""
    import scipy.linalg  # noqa: F401  (brings a BLAS of its own)
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        yield


# the room whose files share worker processes: one test process takes them all
ON_CLUSTERS = "tests/passes/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """``--dist loadfile``, with that room as one file; any other distribution as it is."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return ON_CLUSTERS if file.startswith(ON_CLUSTERS) else file

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Any]:
    """A client of two worker processes of one thread each, which no test harms."""
    from tests.passes.local_clusters import start_client, stop_client

    client = start_client(2)
    yield client
    stop_client(client)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of real data that lies beside the repository."""
    path = Path(__file__).parents[1].parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("the directory of real data does not lie beside the repository")
    return path


S3_KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIATEST",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server on loopback (see ``s3_server.py``)."""
    script = str(Path(__file__).with_name("s3_server.py"))
    with subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | S3_KEYS,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a bucket, with what is needed to get there in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**S3_KEYS, "AWS_ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4().hex}"


@pytest.fixture
def own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel ``python3`` of this interpreter that sees this source tree and no user settings."""
    from tests.notebooks import kernel_environment

    monkeypatch.delenv("MPLBACKEND", raising=False)
    for name, value in kernel_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
