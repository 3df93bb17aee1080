"""What Windows lacks of ``os`` is missed nowhere: neither on import, nor by a fit and its store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streampca import paths
from streampca.errors import DamagedSourceError
from streampca.store import backend

PROGRAM = """
import ctypes, importlib, importlib.util, os, pkgutil, shutil, sys

# libraries look at the platform, which is this one: they come first
import dask.array, distributed, h5py, matplotlib.pyplot, numba, numpy as np, platformdirs
import scipy.linalg, xarray, zarr

LACKING = '''O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK O_NOCTTY O_PATH O_SYNC O_DSYNC pread preadv
pwrite pwritev readv writev fchmod fchown chown lchown fork forkpty register_at_fork getuid geteuid
getgid getegid getpgid getpgrp setsid killpg sched_getaffinity sched_setaffinity sysconf confstr
fstatvfs mkfifo mknod nice getloadavg uname posix_fadvise posix_fallocate openpty ttyname
wait3 wait4 setuid setgid getpriority getrusage major minor makedev getgroups getsid lockf sendfile
sync fdatasync pipe2 memfd_create copy_file_range getxattr listxattr setxattr removexattr fwalk
pathconf fpathconf posix_spawn sched_yield chroot lchmod fchdir get_blocking set_blocking
EX_OK EX_USAGE WEXITSTATUS'''.split()
for name in LACKING:
    if hasattr(os, name):
        delattr(os, name)
if hasattr(os, "process_cpu_count"):  # it asks sched_getaffinity here, and not there
    os.process_cpu_count = os.cpu_count
kill = os.kill
def interrupting(pid, number):
    assert number != 0, "os.kill(pid, 0) is Ctrl-C there"
    kill(pid, number)
os.kill = interrupting
os.supports_dir_fd = set()
shutil._use_fd_functions = False  # found when it was imported
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty"):
    sys.modules[name] = None  # importing it is an error
dlopen = ctypes.CDLL
def only_named(name, *more, **options):
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    return dlopen(name, *more, **options)
ctypes.CDLL = only_named

import builtins, io
opened = io.open
package = importlib.util.find_spec("streampca").submodule_search_locations[0]
def without_proc(file, *more, **options):
    ours = sys._getframe(1).f_code.co_filename.startswith(package)
    if ours and str(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "no such file", file)
    return opened(file, *more, **options)
builtins.open = io.open = without_proc

import streampca
from streampca.passes import memory
memory.PROC = memory.CGROUP = memory.Path("nowhere")
for one in pkgutil.walk_packages(streampca.__path__, "streampca."):
    if not one.name.endswith("__main__"):
        importlib.import_module(one.name)

folder = sys.argv[1]
x = np.random.default_rng(0).normal(size=(60, 8))
np.save(folder + "/x.npy", x)
zarr.create_array(folder + "/x.zarr", data=x, chunks=(20, 8))
from streampca.sources import open as open_source
fits = [streampca.PCA(2).fit(open_source(folder + "/" + name)) for name in ("x.npy", "x.zarr")]
np.testing.assert_allclose(*(one.explained_variance_ for one in fits), rtol=1e-12)
for _ in range(2):  # made, and replaced
    fits[0].save(folder + "/model")
store = streampca.ModelStore(folder + "/store")
store.publish(fits[0]), store.publish(fits[1])
for model in (streampca.load(folder + "/model"), store.load()):
    np.testing.assert_array_equal(model.components_, fits[0].components_)
assert memory.resident_nbytes() > 1 << 20 and memory.available_nbytes() > 1 << 20

from streampca.cli.commands import main
os.chdir(folder)
with opened("job.yaml", "w", encoding="utf-8") as file:
    file.write("source: {path: grows.zarr}\\nmodel: {n_components: 2}\\n")
    file.write("store: nightly\\nsettle: 0\\n")
zarr.create_array("grows.zarr", data=x[:40], chunks=(20, 8))
assert main(["refresh", "job.yaml"]) == 0
streampca.append("grows.zarr", x[40:])
assert main(["refresh", "job.yaml"]) == 0
assert main(["status", "job.yaml"]) == 0
words = ["fit", "x.zarr", "-k", "2", "-o", "m", "--checkpoint", "kept", "--scores", "s.npy", "-q"]
assert main(words) == 0
assert main(["models", "rollback", "nightly"]) == 0
assert main(["report", "m", "-o", "m.html"]) == 0

# what Windows cannot name, and names that differ in their case alone
for place, folders, files in os.walk(folder):
    names = folders + files
    assert len({one.lower() for one in names}) == len(names), names
    for one in names:
        stem = one.split(".")[0].upper()
        assert not set(one) & set('<>:"|?*\\\\') and one[-1] not in ". ", one
        assert stem not in {"CON", "PRN", "AUX", "NUL", "COM1", "LPT1"}, one
"""


@pytest.mark.slow
def test_everything_can_be_imported_and_a_model_kept(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(params=[True, False], ids=["by handle", "by name"])
def by_handle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(paths, "BY_HANDLE", request.param)
    return bool(request.param)


def test_a_file_is_found_inside_its_folder_alone(by_handle: bool, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "b").write_bytes(b"x" * 9)
    (tmp_path / "out").write_bytes(b"secret")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "folder").symlink_to(tmp_path)
    (tmp_path / "root").symlink_to(tmp_path / "in")
    os.mkfifo(tmp_path / "in" / "fifo")
    assert paths.read_inside(tmp_path / "root", "a/b", 9) == b"x" * 9
    for name in ("link", "folder/out", "fifo", "a", "a/b/c"):
        with pytest.raises(DamagedSourceError, match="expected a regular file"):
            paths.read_inside(tmp_path / "in", name, 100)
    with pytest.raises(FileNotFoundError):
        paths.read_inside(tmp_path / "in", "a/c", 100)


@pytest.mark.parametrize("lacking", [False, True])
def test_bytes_from_a_place_in_a_file(
    lacking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking:
        monkeypatch.delattr(os, "preadv", raising=False)
    (tmp_path / "x").write_bytes(bytes(range(200)))
    handle = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        into = bytearray(50)
        for place, expected in ((20, 50), (190, 10), (300, 0)):
            assert paths.read_at(handle, memoryview(into), place) == expected
            assert into[:expected] == bytes(range(200))[place : place + expected]
    finally:
        os.close(handle)


def test_where_folders_cannot_be_opened_files_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    (tmp_path / "x").write_bytes(b"x")
    for opens_folders, expected in ((True, 2), (False, 1)):
        flushed.clear()
        monkeypatch.setattr(backend, "OPENS_FOLDERS", opens_folders)
        backend.fsync(tmp_path / "x")
        backend.fsync(tmp_path)
        assert len(flushed) == expected
