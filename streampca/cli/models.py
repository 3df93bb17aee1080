"""``streampca models``: list, check, promote and remove the versions of a model store."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streampca
from streampca.cli.commands import Parser
from streampca.cli.info import describe, print_damage
from streampca.cli.monitor import write_distances
from streampca.cli.options import print_answer
from streampca.cli.outputs import check_outputs
from streampca.cli.terminal import shown
from streampca.errors import InvalidInputError, SourceError
from streampca.matrix.labels import json_of
from streampca.model_store.history import History
from streampca.model_store.model_store import Version
from streampca.models.results.drift import compare
from streampca.models.results.sampled_drift import sampled_drift
from streampca.operations.scores import mark_of
from streampca.sources.ledger import APPENDED
from streampca.store.sinks import copy_rows, mark_written, marked, open_written

Run = Callable[[argparse.Namespace], int]


def add_options(parsers: Mapping[str, Parser], argv: Sequence[str]) -> None:
    """Add the commands of ``models``."""
    inner = parsers["models"].add_subparsers(required=True)

    def add(name: str, run: Run, text: str, version: str = "") -> argparse.ArgumentParser:
        one: argparse.ArgumentParser = inner.add_parser(name, help=text, description=text)
        one.set_defaults(run=run)
        one.add_argument("store", help="the model store: a directory or s3://bucket/path")
        if version:
            which = "its number, or the beginning of its id"
            one.add_argument("version", nargs=None if version == "1" else "?", help=which)
        one.add_argument("--json", action="store_true", help="machine-readable output")
        return one

    publish = add("publish", run_publish, "put a saved model into the store, as its next version")
    publish.add_argument("model", help="what streampca fit -o wrote")
    publish.add_argument("--candidate", action="store_true", help="do not serve it yet")
    publish.add_argument("--scores", metavar="ZARR", help="that were made with it")
    publish.add_argument("--reason", default="", help="for the log")
    add("list", run_list, "all versions, the promoted one marked *")
    add("show", run_show, "one version: spectrum, settings, source, lineage", "?")
    verify = add("verify", run_verify, "read every byte of the log and of the versions", "?")
    verify.add_argument(
        "--mend",
        action="store_true",
        help="repair a damaged log from what is left of it and from the versions",
    )
    promote = add("promote", run_promote, "serve this version from now on", "1")
    rollback = add("rollback", run_rollback, "serve the version promoted before, or this one", "?")
    for one in (promote, rollback):
        one.add_argument("--reason", default="", help="for the log")
    gc = add("gc", run_gc, "remove old versions and unfinished publications")
    gc.add_argument("--keep", type=int, default=10, metavar="N", help="versions (default 10)")
    gc.add_argument(
        "--grace",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="for which unfinished publications are not touched (default 24)",
    )
    gc.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    export = add("export", run_export, "copy a model and its scores out of one version", "?")
    export.add_argument("--model", metavar="MODEL", help="save the model here")
    export.add_argument("--scores", metavar="ZARR", help="write the scores here")
    export.add_argument(
        "--distances", metavar="CSV|PARQUET|ZARR", help="write T2 and SPE of its rows here"
    )
    export.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    diff = add("diff", run_diff, "how far a version lies from another (default: the promoted one)")
    diff.add_argument("version", help="the new one")
    diff.add_argument("other", nargs="?", help="the old one")


def run_publish(arguments: argparse.Namespace) -> int:
    """``streampca models publish``."""
    result = streampca.load(arguments.model).result_
    promote = not arguments.candidate
    store = streampca.ModelStore(arguments.store)
    scores = None if arguments.scores is None else _opened(arguments.scores)
    version = store.publish(result, promote=promote, reason=arguments.reason, scores=scores)
    if promote:
        return _served(arguments, version)
    whole = {"candidate": version.number, "id": version.id}
    print_answer(arguments, whole, f"version {version.number} is a candidate")
    return 0


def _opened(path: str) -> Any:
    if marked(path) is None:
        raise SourceError(f"{path}: no scores that streampca wrote")
    return open_written(path)


def run_list(arguments: argparse.Namespace) -> int:
    """``streampca models list``."""
    store = streampca.ModelStore(arguments.store)
    history = store.history()
    rows = [_row(version, history) for version in store.versions(history)]
    print_damage(history)
    if arguments.json:
        print(json_of(rows, indent=1))
        return 0
    print(f"{'':1} {'version':>7} {'published':25} {'samples':>10} {'k':>4}  {'state':10} reason")
    for row in rows:
        mark = "*" if row["state"] == "promoted" else " "
        print(
            f"{mark} {row['version']:>7} {row['published']:25} {row['samples']!s:>10} "
            f"{row['components']!s:>4}  {row['state']:10} {row['reason']}"
        )
    return 0


def _row(version: Version | Any, history: History) -> dict[str, Any]:
    entry = version.entry
    state = "promoted" if entry.version == history.current else "candidate"
    if state == "candidate" and entry.version in history.served:
        state = "earlier"
    row = {
        "version": entry.number,
        "id": entry.version,
        "published": entry.time,
        "state": state,
        "reason": entry.reason,
        "samples": None,
        "components": None,
    }
    try:
        record = version.record
    except SourceError:
        return {**row, "state": "damaged"}
    return row | {name: record.get(name) for name in ("samples", "components")}


def run_show(arguments: argparse.Namespace) -> int:
    """``streampca models show``."""
    store = streampca.ModelStore(arguments.store)
    history = store.history()
    print_damage(history)
    version: Any = store.find(arguments.version, history)
    row = _row(version, history)
    if arguments.json:
        print(json_of({**row, **version.record}, indent=1))
        return 0
    print(
        f"version    {row['version']} ({row['id']}), {row['state']}, published {row['published']}"
    )
    lineage = version.record.get("lineage", {})
    if lineage:
        print(f"lineage    {json_of(lineage)}")
    source = version.record.get("source", {})
    if source:
        rows = f"{source.get('samples', '?')} samples, fingerprint "
        print(f"data       {rows}{str(source.get('fingerprint', ''))[:16]}")
    print(describe(version.result()))
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """``streampca models verify``: exit code 65 if something is damaged."""
    store = streampca.ModelStore(arguments.store)
    mended = store.mend() if arguments.mend else {}
    wrong: dict[int | str, str] = {}
    if arguments.version is None:
        wrong, number = store.verify(), len(store.versions())
    else:
        version, number = store.find(arguments.version), 1
        try:
            version.verify()
        except SourceError as error:
            wrong[version.number] = str(error)
    damaged = {name: why for name, why in wrong.items() if isinstance(name, int)}
    log = {name: why for name, why in wrong.items() if isinstance(name, str)}
    whole = {"versions": number, "damaged": damaged, "log": log, "mended": sorted(mended)}
    lines = [f"mended: {name}" for name in sorted(mended)]
    lines += [*wrong.values(), f"{number - len(damaged)} of {number} versions are whole"]
    print_answer(arguments, whole, "\n".join(lines))
    return 65 if wrong else 0


def run_promote(arguments: argparse.Namespace) -> int:
    """``streampca models promote``."""
    store = streampca.ModelStore(arguments.store)
    print_damage(store.history())
    return _served(arguments, store.promote(arguments.version, arguments.reason))


def run_rollback(arguments: argparse.Namespace) -> int:
    """``streampca models rollback``."""
    store = streampca.ModelStore(arguments.store)
    print_damage(store.history())
    return _served(arguments, store.rollback(arguments.version, arguments.reason))


def _served(arguments: argparse.Namespace, version: Any) -> int:
    whole = {"promoted": version.number, "id": version.id}
    print_answer(arguments, whole, f"version {version.number} ({version.id}) is served now")
    return 0


def run_gc(arguments: argparse.Namespace) -> int:
    """``streampca models gc``."""
    store = streampca.ModelStore(arguments.store)
    names = store.gc(arguments.keep, grace=3600 * arguments.grace, dry_run=arguments.dry_run)
    ids = sorted({name.split("/")[1] for name in names if name.startswith("versions/")})
    whole = {"removed": ids, "files": len(names), "dry_run": arguments.dry_run}
    would = "would be removed" if arguments.dry_run else "removed"
    lines = [*ids, f"{len(ids)} versions, {len(names)} files {would}"]
    print_answer(arguments, whole, "\n".join(lines))
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    """``streampca models export``: copy a model, its scores, or both, of the same version."""
    wanted = [arguments.model, arguments.scores, arguments.distances]
    if not any(wanted):
        raise InvalidInputError(
            "nothing to copy; add --model MODEL, --scores ZARR or --distances CSV"
        )
    check_outputs(
        models=[arguments.model],
        arrays=[arguments.scores],
        scores=[arguments.distances],
        overwrite=arguments.overwrite,
    )
    store = streampca.ModelStore(arguments.store)
    copy = partial(_copy, arguments)
    version: Any = (
        store.read_current(copy)
        if arguments.version is None
        else copy(store.find(arguments.version))
    )
    whole = {
        "version": version.number,
        "id": version.id,
        "model": arguments.model,
        "scores": arguments.scores,
        "distances": arguments.distances,
    }
    places = " and ".join(filter(None, wanted))
    print_answer(arguments, whole, f"version {version.number} copied to {shown(places)}")
    return 0


def _copy(arguments: argparse.Namespace, version: Any) -> Any:
    scores = version.scores() if arguments.scores else None  # before anything is written
    distances = version.distances() if arguments.distances else None
    if arguments.model:
        version.result().save(arguments.model)
    if scores is not None:
        copy_rows(scores, arguments.scores, arguments.overwrite)
        source = {"number": version.number, "id": version.id}
        mark_written(arguments.scores, mark_of(version.result()), source)
    if distances is not None:
        arrays, document = distances
        values = [arrays[name] for name in ("t2", "spe", "missing")]
        found = {name: one["value"] for name, one in document["limits"].items()}
        limits = {name: math.inf if one is None else float(one) for name, one in found.items()}
        samples = version.result().labels.samples
        write_distances(arguments.distances, values, limits, samples, arguments.overwrite)
    return version


def run_diff(arguments: argparse.Namespace) -> int:
    """``streampca models diff``."""
    store = streampca.ModelStore(arguments.store)
    new: Any = store.find(arguments.version)
    old: Any = store.find(arguments.other)
    drift = compare(old.result(), new.result())
    shared = _shared_rows(store, old, new) or _shared_rows(store, new, old)
    sampled = sampled_drift(old.result(), new.result(), shared)
    changed = _changed(old.record.get("settings", {}), new.record.get("settings", {}))
    whole = {"old": old.number, "new": new.number, "settings": changed, **drift.to_dict()}
    whole["sampled"] = sampled.to_dict()
    lines = [f"{name}: {before!r} became {now!r}" for name, (before, now) in changed.items()]
    lines = [f"from version {old.number} to version {new.number}", *lines, str(drift), str(sampled)]
    print_answer(arguments, whole, "\n".join(lines))
    return 0


def _shared_rows(store: streampca.ModelStore, old: Version, new: Version) -> int:
    """Rows of the old version that the new one has: all if rows were appended alone, else 0."""
    by_id = {one.id: one for one in store.versions()}
    one: Any = new
    while one is not None and one.id != old.id:
        lineage = one.record.get("lineage", {})
        if lineage.get("change") != APPENDED:
            return 0
        one = by_id.get(lineage.get("parent"))
    return 0 if one is None else int(old.record.get("samples") or 0)


def _changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, list[Any]]:
    names = sorted(set(old) | set(new))
    return {n: [old.get(n), new.get(n)] for n in names if old.get(n) != new.get(n)}
