"""Saved models, stores, logs and job files, altered by whoever can sign them; seeded."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import random
import shutil
import socket
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np

import streampca
from streampca.model_store.log import FOLD
from streampca.store.checked import sign


@functools.cache
def bomb() -> bytes:
    """9 kB that decode to 300 MB, with their checksum."""
    encoded = bytes(numcodecs.Zstd().encode(np.zeros(3 * 10**8, np.uint8)))
    return encoded + int(google_crc32c.value(encoded)).to_bytes(4, "little")


ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "..",
    "/etc/passwd",
    "a\0b",
    "\x1b[2J",
    "\ud800",
    "../../canary/secret",
    "s3://b/x",
    [],
    {},
    [[]],
    [None],
    {"x": 1},
    [1e9, 1],
    [0, 0],
    ["a"] * 5,
    {"": {}},
    [-1],
    [2**40],
    [10**9, 1],
)
NAMES = (
    "arrays/mean/../../../canary/secret",
    "/etc/passwd",
    "",
    ".",
    "..",
    "arrays",
    "arrays/",
    "arrays//zarr.json",
    "arrays/../zarr.json",
    "arrays/mean/c/../../x",
    "arrays\\mean\\zarr.json",
    "arrays/me\0an/zarr.json",
    "arrays/mean/link",
    "bundle.json",
    "x/y/z",
    "arrays/mean/c/-1",
    "arrays/\x1b[2J/zarr.json",
)


@dataclass(frozen=True)
class Places:
    """Whole ones, which are copied and altered, and a file outside of them that none may read."""

    models: list[Path]
    stores: list[Path]
    jobs: list[str]
    canary: Path


def make_places(root: Path) -> Places:
    """Fit and save one of every kind."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 6)) @ np.diag([2.0, 1.7, 1.4, 1, 1, 1])
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _made(root, X, holes)


def _made(root: Path, X: Any, holes: Any) -> Places:
    fitted = [
        streampca.PCA(2).fit(X),
        streampca.PCA(2, scale="std").fit(X),
        streampca.IncrementalPCA(2).fit(X),
        streampca.TruncatedSVD(2).fit(X),
        streampca.PPCA(2).fit(X),
        streampca.FactorAnalysis(1).fit(X),
        streampca.HardImpute(1).fit(holes),
    ]
    results = [model.result_ for model in fitted]
    results.append(results[0].rotate("varimax"))
    models = [one.save(root / f"model {i}") for i, one in enumerate(results)]
    for i in range(2):
        store = streampca.ModelStore(root / f"store {i}")
        store.publish(results[0])
        store.publish(fitted[2])
        store.publish(results[1], promote=False)
        if i:
            store.rollback(1)
    store = streampca.ModelStore(root / "store 2")
    for i in range(FOLD):  # the last entry is a checkpoint, and the version has scores
        scores = fitted[0].transform(X) if i + 1 == FOLD else None
        store.publish(results[0], reason=str(i), scores=scores)
    canary = root / "canary" / "secret"
    canary.parent.mkdir()
    canary.write_bytes(b"secret")
    job = (Path(streampca.__file__).parents[1] / "configs" / "nightly.yaml").read_text()
    stores = [root / "store 0", root / "store 1", root / "store 2"]
    return Places(models, stores, [job, SMALL_JOB, OPTIONS], canary)


SMALL_JOB = """\
source: {path: data.zarr, dim: time}
store: models/nightly
model: {kind: IncrementalPCA, n_components: 3, scale: std}
gate: {max_angle: 0.3}
cluster: {class: LocalCluster, workers: 2, adapt: {minimum: 1, maximum: 3}}
"""
OPTIONS = "source: [a.zarr, b.zarr]\nk: 4\nmemory-limit: 1GiB\noverwrite: true\n"


@dataclass
class Case:
    """One altered thing.  kind : "model", "store" or "job".  done : what was altered, in words."""

    kind: str
    path: Path
    done: list[str]


def make_case(seed: int, places: Places, root: Path) -> Case:
    """The case of this number, in a folder of its own."""
    rng = random.Random(seed)
    kind = rng.choices(("model", "manifest", "log", "job"), (45, 15, 20, 20))[0]
    if kind == "job":
        path = root / "job.yaml"
        text, done = mutate_text(rng, rng.choice(places.jobs))
        path.write_bytes(text)
        if rng.random() < 0.02:
            done.append(put_special(rng, path, places))
        return Case("job", path, done)
    source = rng.choice(places.models if kind == "model" else places.stores)
    path = root / "it"
    shutil.copytree(source, path)
    act: Callable[[random.Random, Path, Places], list[str]] = {
        "model": mutate_bundle,
        "manifest": mutate_version,
        "log": mutate_log,
    }[kind]
    done = act(rng, path, places)
    return Case("model" if kind == "model" else "store", path, done)


# -- JSON and text -----------------------------------------------------------------------------


def mutate_json(rng: random.Random, whole: Any, times: int = 1) -> tuple[Any, list[str]]:
    """Entries replaced, removed, renamed or nested deeper, wherever they stand."""
    whole, done = copy.deepcopy(whole), []
    for _ in range(times):
        spots = list(_spots(whole))
        if not spots:
            break
        holder, key = rng.choice(spots)
        how = rng.randrange(6)
        done.append(f"json {how} at {key!r}")
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[rng.choice(NAMES)] = holder.pop(key)
        elif how == 2 and isinstance(holder[key], (int, float)):
            holder[key] = holder[key] * rng.choice((-1, 0, 2, 1000, 10**12))
        elif how == 3:
            other, at = rng.choice(spots)
            holder[key] = copy.deepcopy(other[at])
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD))
    return whole, done


def _spots(whole: Any) -> Any:
    waiting = [whole]
    while waiting:
        one = waiting.pop()
        pairs = list(one.items()) if isinstance(one, dict) else list(enumerate(one))
        for key, value in pairs:
            yield one, key
            if isinstance(value, (dict, list)):
                waiting.append(value)


def deep(levels: int) -> bytes:
    """Lists in lists."""
    return b"[" * levels + b"]" * levels


def mutate_text(rng: random.Random, text: str) -> tuple[bytes, list[str]]:
    """Lines and bytes changed."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 3)):
        i = rng.randrange(len(lines))
        how = rng.randrange(6)
        if how == 0:
            del lines[i]
        elif how == 1:
            lines[i] = lines[i].replace(":", rng.choice((": ", ":", "::", ": &a", ": *a", ": !!")))
        elif how == 2:
            head = lines[i].partition(":")[0]
            lines[i] = f"{head}: {rng.choice(ODD)!r}"
        elif how == 3:
            lines[i] = " " * rng.randrange(9) + lines[i]
        elif how == 4:
            lines.insert(i, rng.choice(lines))
        else:
            lines[i] += rng.choice(("{", "[", "}", "\t", "\x1b]0;x\a", "é\u202e", "- -", "'"))
        lines = lines or [""]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        data = flip(rng, data)
    if rng.random() < 0.02:
        data = rng.choice(
            (b"\xff\xfe" + data, b"[" * 5000, b"a: " * 2000, b"- " * 30000, b"x" * 70000)
        )
    return data, ["text"]


def flip(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, or the end cut off."""
    if not data:
        return b"\0"
    if rng.random() < 0.3:
        return data[: rng.randrange(len(data))]
    altered = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        altered[rng.randrange(len(altered))] = rng.randrange(256)
    return bytes(altered)


# -- files -------------------------------------------------------------------------------------


def put_special(rng: random.Random, file: Path, places: Places) -> str:
    """Something that is no regular file in the place of one."""
    how = rng.choice(
        ("fifo", "folder", "link", "device", "socket", "absent", "folder link", "self")
    )
    if file.is_dir():
        shutil.rmtree(file)
    else:
        file.unlink()
    if how == "fifo":
        os.mkfifo(file)
    elif how == "folder":
        file.mkdir()
    elif how == "link":
        file.symlink_to(places.canary)
    elif how == "device":
        file.symlink_to("/dev/zero")
    elif how == "folder link":
        file.symlink_to(places.canary.parent)
    elif how == "self":
        file.symlink_to(file)
    elif how == "socket":
        one = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(file.parent)  # a path of a socket has at most 107 bytes
        try:
            one.bind(file.name)
        finally:
            os.chdir(here)
            one.close()
    return how


def files_below(path: Path) -> list[Path]:
    return sorted(one for one in path.rglob("*") if one.is_file())


def mutate_bundle(rng: random.Random, path: Path, places: Places) -> list[str]:
    """A saved model: its document, its list of files, its arrays, its files; signed again."""
    index = path / "bundle.json"
    whole = json.loads(index.read_text())
    how = rng.randrange(10)
    done: list[str] = []
    if how <= 2:
        whole["document"], done = mutate_json(rng, whole["document"], rng.randint(1, 3))
    elif how == 3:
        whole, done = mutate_json(rng, whole, rng.randint(1, 2))
    elif how == 4:
        names = list(whole["files"])
        digest = rng.choice((hashlib.sha256(b"secret").hexdigest(), whole["files"][names[0]]))
        name = rng.choice(NAMES)
        whole["files"][name] = digest
        done = [f"name {name!r}"]
    elif how <= 7:
        name = rng.choice([one for one in whole["files"]])
        data, words = mutate_file(rng, name, (path / name).read_bytes())
        (path / name).write_bytes(data)
        whole["files"][name] = hashlib.sha256(data).hexdigest()
        done = [f"{name}: {words}"]
    elif how == 8:
        file = rng.choice([*files_below(path), *(one for one in path.rglob("*") if one.is_dir())])
        return [f"{file.name}: {put_special(rng, file, places)}"]
    else:
        file = rng.choice(files_below(path))
        file.write_bytes(flip(rng, file.read_bytes()))
        return [f"{file.name}: flipped"]
    index.write_bytes(sign_any(rng, whole))
    return done


def sign_any(rng: random.Random, whole: Any) -> bytes:
    """Signed, if it can be; some of them with a document of another kind."""
    chance = rng.random()
    if chance < 0.01:
        return rng.choice(
            (deep(100_000), deep(500), b"[" + b"[]," * 10**6 + b"[]]", b"{}", b"", b"1")
        )
    if not isinstance(whole, dict):
        return json.dumps(whole).encode()
    if 0.01 < chance < 0.02:
        whole["document"] = json.loads(deep(300))
    try:
        return sign({k: v for k, v in whole.items() if k != "sha256"})
    except (TypeError, ValueError):
        return json.dumps(whole, default=repr).encode()


def mutate_file(rng: random.Random, name: str, data: bytes) -> tuple[bytes, str]:
    """A file of an array."""
    if name.endswith("zarr.json"):
        told, done = mutate_json(rng, json.loads(data), rng.randint(1, 2))
        if rng.random() < 0.3:
            n = rng.choice((0, 1, 10**9, 10**12, 2**50, 5))
            chunks = {"chunk_shape": [rng.choice((1, n or 1))]}
            grid = {"name": "regular", "configuration": chunks}
            told = {**told, "shape": [n], "chunk_grid": grid}
        return json.dumps(told).encode(), f"{done}"
    how = rng.randrange(5)
    if how == 0:
        return bomb(), "bomb"
    if how == 1:
        return b"", "empty"
    if how == 2:
        return flip(rng, data), "flipped"
    body = flip(rng, data[:-4])
    if how == 3:
        return body + int(google_crc32c.value(body)).to_bytes(4, "little"), "flipped, summed"
    plain = bytearray(numcodecs.Zstd().decode(data[:-4]))
    for _ in range(rng.randint(1, 4)):
        at = 8 * rng.randrange(max(len(plain) // 8, 1))
        value = rng.choice((float("nan"), float("inf"), 1e300, -1.0, 0.0, 5e-324))
        plain[at : at + 8] = struct.pack("<d", value)[: len(plain) - at]
    body = bytes(numcodecs.Zstd().encode(bytes(plain)))
    return body + int(google_crc32c.value(body)).to_bytes(4, "little"), "other values"


# -- stores ------------------------------------------------------------------------------------


def mutate_version(rng: random.Random, path: Path, places: Places) -> list[str]:
    """Manifest or files of the served version; the log is signed again."""
    history = streampca.ModelStore(path).history()
    version = history.current
    folder = path / "versions" / str(version)
    manifest = json.loads((folder / "manifest.json").read_text())
    how = rng.randrange(6)
    if how <= 1:
        manifest, done = mutate_json(rng, manifest, rng.randint(1, 3))
    elif how == 2:
        name = rng.choice(NAMES)
        manifest["files"][f"model/{name}"] = rng.choice(list(manifest["files"].values()))
        done = [f"name {name!r}"]
    elif how == 3:
        data = mutate_pack(rng, (folder / "files.zip").read_bytes())
        (folder / "files.zip").write_bytes(data)
        manifest["pack"] = {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}
        done = ["pack"]
    elif how == 4:
        file = rng.choice([*files_below(folder), folder])
        return [f"{file.name}: {put_special(rng, file, places)}"]
    else:
        file = rng.choice(files_below(folder))
        file.write_bytes(flip(rng, file.read_bytes()))
        return [f"{file.name}: flipped"]
    text = sign_any(rng, manifest)
    (folder / "manifest.json").write_bytes(text)

    def follow(entry: dict[str, Any]) -> None:
        if entry["version"] == version and entry["action"] == "publish":
            entry["manifest"] = hashlib.sha256(text).hexdigest()

    sign_log(path, follow)
    sign_head(path)
    return done


def mutate_pack(rng: random.Random, data: bytes) -> bytes:
    """The archive of small files."""
    how = rng.randrange(4)
    if how == 0:
        return flip(rng, data)
    altered = bytearray(data)
    at = [i for i in range(len(data) - 4) if data[i : i + 4] == b"PK\x03\x04"]
    if how == 1 and at:
        field, width = rng.choice(((6, 2), (8, 2), (18, 4), (22, 4), (26, 2), (28, 2)))
        start = rng.choice(at) + field
        altered[start : start + width] = rng.randrange(256**width).to_bytes(width, "little")
        return bytes(altered)
    if how == 2:
        return data + data
    return data[rng.choice(at or [0]) :]


def sign_log(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Every entry changed, signed, and chained to the one before it."""
    digest = ""
    for file in sorted((path / "_log").iterdir()):
        entry = json.loads(file.read_text())
        change(entry)
        entry["previous"] = digest
        text = sign({k: v for k, v in entry.items() if k != "sha256"})
        file.write_bytes(text)
        digest = hashlib.sha256(text).hexdigest()


def sign_head(path: Path) -> None:
    """It says of the last entry what that is now."""
    text = max((path / "_log").iterdir()).read_bytes()
    head = json.loads((path / "_head.json").read_text())
    head["entry"] = hashlib.sha256(text).hexdigest()
    (path / "_head.json").write_bytes(sign({k: v for k, v in head.items() if k != "sha256"}))


def mutate_table(rng: random.Random, path: Path, file: Path) -> list[str]:
    """The table of all versions in a checkpoint, which is the last entry; the head agrees."""
    entry = json.loads(file.read_text())
    table, done = mutate_json(rng, json.loads(entry["checkpoint"]["table"]), rng.randint(1, 3))
    entry["checkpoint"]["table"] = json.dumps(table)
    if rng.random() < 0.3:
        entry["checkpoint"], more = mutate_json(rng, entry["checkpoint"])
        done += more
    file.write_bytes(sign({k: v for k, v in entry.items() if k != "sha256"}))
    sign_head(path)
    return [f"table: {done}"]


def mutate_log(rng: random.Random, path: Path, places: Places) -> list[str]:
    """Entries, head or marker."""
    files = [*sorted((path / "_log").iterdir()), path / "_head.json", path / "streampca-store.json"]
    file = rng.choice([one for one in files if one.is_file()])
    how = rng.randrange(5)
    if how == 0:
        place = rng.choice([file, path / "_log"])
        return [f"{place.name}: {put_special(rng, place, places)}"]
    if how == 1:
        file.write_bytes(flip(rng, file.read_bytes()))
        return [f"{file.name}: flipped"]
    if how == 2 or file.parent.name != "_log":
        whole, done = mutate_json(rng, json.loads(file.read_text()), rng.randint(1, 2))
        file.write_bytes(sign_any(rng, whole))
        return [file.name, *done]
    folded = [one for one in files[:-2] if b'"checkpoint"' in one.read_bytes()]
    if folded and how == 3:
        return mutate_table(rng, path, folded[-1])
    done = []

    def change(entry: dict[str, Any]) -> None:
        if rng.random() < 0.5:
            altered, words = mutate_json(rng, entry, 1)
            done.extend(words)
            entry.clear()
            entry.update(altered)

    sign_log(path, change)
    if rng.random() < 0.7:
        sign_head(path)
    return done
