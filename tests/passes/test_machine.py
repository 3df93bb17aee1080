"""What the machine can give, read from fake /proc and /sys/fs/cgroup trees."""

from __future__ import annotations

import os
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import psutil
import pytest

from streampca.passes import memory

GiB = 2**30
UNLIMITED_V1 = 9223372036854771712  # what version 1 says where there is no limit


@pytest.fixture
def system(tmp_path: Path, monkeypatch: Any) -> Path:
    """An empty system: fill in ``proc`` and ``cgroup``."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "cgroup")
    return tmp_path


def write(path: Path, text: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def limits(system: Path, lines: str, files: dict[str, Any]) -> int | None:
    write(system / "proc" / "self" / "cgroup", lines)
    for name, value in files.items():
        write(system / "cgroup" / name, value)
    return memory._cgroup_limit()


V2 = {
    "own group": ("0::/user/job", {"user/job/memory.max": GiB}, GiB),
    "a group above": ("0::/user/job", {"user/memory.max": GiB, "user/job/memory.max": "max"}, GiB),
    "the tightest": (
        "0::/a/b/c",
        {"a/memory.max": 3 * GiB, "a/b/memory.max": GiB, "a/b/c/memory.max": 2 * GiB},
        GiB,
    ),
    "no limit": ("0::/user/job", {"user/job/memory.max": "max"}, None),
    "no file": ("0::/user/job", {}, None),
    "root of a container": ("0::/", {"memory.max": 2 * GiB}, 2 * GiB),
    "outside of the namespace": ("0::/../../other", {"memory.max": 2 * GiB}, 2 * GiB),
    "colons in the name": ("0::/a:b:c", {"a:b:c/memory.max": GiB}, GiB),
    "garbage": ("0::/a", {"a/memory.max": "lots"}, None),
    "broken lines": ("\nnonsense\n0::/a", {"a/memory.max": GiB}, GiB),
}

V1 = {
    "own group": ("4:memory:/job", {"memory/job/memory.limit_in_bytes": GiB}, GiB),
    "joint controllers": ("4:cpu,memory:/job", {"memory/job/memory.limit_in_bytes": GiB}, GiB),
    "a group above": (
        "4:memory:/a/b",
        {"memory/a/memory.limit_in_bytes": GiB, "memory/a/b/memory.limit_in_bytes": UNLIMITED_V1},
        GiB,
    ),
    "no limit": ("4:memory:/job", {"memory/job/memory.limit_in_bytes": UNLIMITED_V1}, None),
    "path of the host": ("4:memory:/docker/123", {"memory/memory.limit_in_bytes": GiB}, GiB),
    "other controllers": (
        "3:cpu:/job\n5:memory_pressure:/job",
        {"memory/job/memory.limit_in_bytes": GiB},
        None,
    ),
    "both versions": (
        "4:memory:/job\n0::/job",
        {"memory/job/memory.limit_in_bytes": 2 * GiB, "job/memory.max": GiB},
        GiB,
    ),
}


@pytest.mark.parametrize(("lines", "files", "limit"), V2.values(), ids=V2.keys())
def test_limits_of_control_groups_version_2(
    system: Path, lines: str, files: dict[str, Any], limit: int | None
) -> None:
    assert limits(system, lines, files) == limit


@pytest.mark.parametrize(("lines", "files", "limit"), V1.values(), ids=V1.keys())
def test_limits_of_control_groups_version_1(
    system: Path, lines: str, files: dict[str, Any], limit: int | None
) -> None:
    assert limits(system, lines, files) == limit


def meminfo(system: Path, available_kb: int) -> None:
    text = f"MemTotal: 99999999 kB\nMemFree: 12 kB\nMemAvailable:   {available_kb} kB\n"
    write(system / "proc" / "meminfo", text)
    write(system / "proc" / "self" / "statm", "1000 0 20 1 0 400 0")


def test_available_is_free_and_what_is_resident(system: Path) -> None:
    meminfo(system, 1024)
    assert memory.available_nbytes() == 2**20
    write(system / "proc" / "self" / "statm", "1000 300 20 1 0 400 0")
    assert memory.resident_nbytes() == 300 * os.sysconf("SC_PAGE_SIZE")
    assert memory.available_nbytes() == 2**20 + memory.resident_nbytes()


def test_available_is_bounded_by_the_control_group(system: Path) -> None:
    meminfo(system, 64 * 2**20)
    assert limits(system, "0::/job", {"job/memory.max": GiB}) == GiB
    assert memory.available_nbytes() == GiB
    meminfo(system, 1024)
    assert memory.available_nbytes() == 2**20


def test_memory_of_a_system_without_proc(system: Path) -> None:
    near = pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert memory._cgroup_limit() is None
    assert memory.available_nbytes() > 2**20
    assert memory.resident_nbytes() == near
    assert 0 < memory.peak_nbytes() <= 1024 * getrusage(RUSAGE_SELF).ru_maxrss
    write(system / "proc" / "meminfo", "MemTotal: 12 kB")
    write(system / "proc" / "self" / "statm", "")
    write(system / "proc" / "self" / "status", "Name: python")
    assert memory.available_nbytes() > 2**20
    assert memory.resident_nbytes() == near
    assert 0 < memory.peak_nbytes() <= 1024 * getrusage(RUSAGE_SELF).ru_maxrss


def test_memory_of_a_system_that_does_not_tell(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    monkeypatch.setattr(psutil.Process, "memory_info", hidden)
    assert memory.available_nbytes() is None
    assert memory.resident_nbytes() == 0


def test_peak(system: Path) -> None:
    write(system / "proc" / "self" / "status", "Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t 1024 kB")
    assert memory.peak_nbytes() == 2**21


def test_this_machine() -> None:
    slack = 2**24  # the kernel counts pages of each thread in batches
    assert 0 < memory.resident_nbytes() <= memory.peak_nbytes() + slack
    available = memory.available_nbytes()
    assert available is None or available > 2**20
