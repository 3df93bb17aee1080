"""What this machine, or the control group that holds this process, can give."""

from __future__ import annotations

from pathlib import Path

from streampca import imported

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_limit() -> int | None:
    """The tightest memory limit among the control groups of this process (v2 or v1)."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    limits: list[int] = []
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        root, name = (CGROUP, "memory.max") if not controllers else (
            CGROUP / "memory", "memory.limit_in_bytes")  # fmt: skip
        folder = root / path.lstrip("/")
        for place in [folder, *folder.parents]:
            if (limit := _number(place / name)) is not None and limit < 1 << 60:
                limits.append(limit)
            if place == root:
                break
    return min(limits, default=None)


def _meminfo(key: str) -> int | None:
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def resident_nbytes() -> int:
    """Resident memory of this process now; 0 where the system does not say."""
    return imported.resident_nbytes(PROC)


def peak_nbytes() -> int:
    """Largest resident memory of this process so far; 0 where the system does not say."""
    try:
        lines = (PROC / "self" / "status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def available_nbytes() -> int | None:
    """Memory that this process may use in all, what it holds already included.

    The smaller of the control group's limit and what the system has available beside what
    is resident here. None where neither is known.
    """
    free = _meminfo("MemAvailable")
    known = [_cgroup_limit(), None if free is None else free + resident_nbytes()]
    return min((k for k in known if k is not None), default=None)
