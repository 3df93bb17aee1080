"""``streampca models``: list, check, name, promote and remove the versions of a model store."""

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
from streampca.model_store.garbage import sizes_of_versions
from streampca.model_store.history import PUBLISH, Entry, History
from streampca.model_store.model_store import Version
from streampca.models.results.drift import compare
from streampca.models.results.sampled_drift import sampled_drift
from streampca.operations.scores import mark_of
from streampca.passes.memory import size
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
            which = "its number, the beginning of its id, or an alias"
            one.add_argument("version", nargs=None if version == "1" else "?", help=which)
        one.add_argument("--json", action="store_true", help="machine-readable output")
        return one

    publish = add("publish", run_publish, "put a saved model into the store, as its next version")
    publish.add_argument("model", help="what streampca fit -o wrote")
    publish.add_argument("--candidate", action="store_true", help="do not serve it yet")
    publish.add_argument("--scores", metavar="ZARR", help="that were made with it")
    publish.add_argument("--reason", default="", help="for the log")
    add("list", run_list, "all versions, by whom and why, the promoted one marked *")
    log = add("log", run_log, "who published, promoted, named and removed what, when and why")
    log.add_argument("--last", type=int, metavar="N", help="only the last lines")
    add("show", run_show, "one version: spectrum, settings, source, lineage", "?")
    verify = add("verify", run_verify, "read every byte of the log and of the versions", "?")
    verify.add_argument(
        "--mend",
        action="store_true",
        help="repair a damaged log from what is left of it and from the versions",
    )
    promote = add("promote", run_promote, "serve this version from now on", "1")
    rollback = add("rollback", run_rollback, "serve the version promoted before, or this one", "?")
    alias = add("alias", run_alias, "name a version, as champion; or list the names")
    alias.add_argument("name", nargs="?", metavar="NAME", help="the alias")
    alias.add_argument("version", nargs="?", help="which version has it from now on")
    alias.add_argument("--remove", action="store_true", help="no version has it from now on")
    gc = add(
        "gc",
        run_gc,
        "remove old versions and unfinished publications; what is served, has an alias, is being "
        "read, or is needed to roll back stays",
    )
    for one in (promote, rollback, alias, gc):
        one.add_argument("--reason", default="", help="for the log")
    _add_rules(gc)
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


def _add_rules(gc: argparse.ArgumentParser) -> None:
    """What may go."""
    gc.add_argument("--keep", type=int, default=10, metavar="N", help="versions (default 10)")
    gc.add_argument(
        "--grace",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="for which unfinished publications are not touched (default 24)",
    )
    gc.add_argument("--dry-run", action="store_true", help="only print what would be removed")


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
    print(
        f"{'':1} {'version':>7} {'published':25} {'samples':>10} {'k':>4}  {'state':10} {'by':20} "
        "reason"
    )
    for row in rows:
        mark = "*" if row["state"] == "promoted" else " "
        named = f"({', '.join(row['aliases'])}) " if row["aliases"] else ""
        print(
            f"{mark} {row['version']:>7} {row['published']:25} {row['samples']!s:>10} "
            f"{row['components']!s:>4}  {row['state']:10} {shown(row['by'] or '-'):20} "
            f"{named}{shown(row['reason'])}"
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
        "aliases": sorted(name for name, one in history.aliases.items() if one == entry.version),
        "by": None,
        "run": None,
        "reason": entry.reason,
        "samples": None,
        "components": None,
    }
    try:
        manifest = version.manifest
    except SourceError:
        return {**row, "state": "damaged"}
    row |= {name: manifest["log"].get(name) for name in ("by", "run")}
    return row | {name: manifest["record"].get(name) for name in ("samples", "components")}


def run_log(arguments: argparse.Namespace) -> int:
    """``streampca models log``."""
    if arguments.last is not None and arguments.last < 1:
        raise InvalidInputError(f"--last {arguments.last}; expected 1 or more")
    store = streampca.ModelStore(arguments.store)
    history = store.history()
    print_damage(history)
    entries = store.entries(arguments.last)
    numbers = {one.version: one.number for one in history.published.values()}
    numbers |= {one.version: one.number for one in entries if one.action == PUBLISH}
    rows = [_line(one, numbers) for one in entries]
    if arguments.json:
        print(json_of(rows, indent=1))
        return 0
    for row in rows:
        named = [numbers.get(one, one) for one in [row["id"], *row["removed"]] if one]
        which = ", ".join(sorted(map(str, named), key=lambda one: (len(one), one)))
        what = f"{row['alias']} of " * bool(row["alias"]) + f"version {which}" * bool(which)
        run = f" [run {row['run']}]" if row["run"] else ""
        said = f"{row['action']:8} {what:24} {row['reason']}{run}"
        print(shown(f"{row['n']:>5} {row['time']:25} {row['by'] or '-':20} {said}".rstrip()))
    return 0


def _line(entry: Entry, numbers: Mapping[str, int]) -> dict[str, Any]:
    """An entry of the log.  numbers : of the versions, by id."""
    return {
        **{name: getattr(entry, name) for name in ("n", "time", "by", "action", "reason", "run")},
        "alias": entry.alias,
        "version": numbers.get(entry.version),
        "id": entry.version or None,
        "removed": list(entry.removed),
        "promoted": entry.current,
    }


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


def run_alias(arguments: argparse.Namespace) -> int:
    """``streampca models alias``."""
    store, name = streampca.ModelStore(arguments.store), arguments.name
    if name is None and not arguments.remove:
        rows = [
            {"alias": one, "version": version.number, "id": version.id}
            for one, version in store.aliases().items()
        ]
        lines = [f"{row['alias']:24} version {row['version']} ({row['id']})" for row in rows]
        print_answer(arguments, rows, "\n".join(lines) or "no version has an alias")
        return 0
    if name is None or (arguments.version is None) != arguments.remove:
        raise InvalidInputError(
            "expected a name and a version, streampca models alias STORE champion 3; or the name "
            "to remove, streampca models alias STORE champion --remove"
        )
    if arguments.remove:
        store.remove_alias(name, arguments.reason)
        print_answer(arguments, {"removed": name}, f"no version has the alias {name} now")
        return 0
    version = store.alias(name, arguments.version, arguments.reason)
    whole = {"alias": name, "version": version.number, "id": version.id}
    print_answer(arguments, whole, f"version {version.number} ({version.id}) is {name} now")
    return 0


def _served(arguments: argparse.Namespace, version: Any) -> int:
    whole = {"promoted": version.number, "id": version.id}
    print_answer(arguments, whole, f"version {version.number} ({version.id}) is served now")
    return 0


def run_gc(arguments: argparse.Namespace) -> int:
    """``streampca models gc``."""
    store = streampca.ModelStore(arguments.store)
    numbers = {one.id: one.number for one in store.versions()}
    files = store.gc(
        arguments.keep,
        grace=3600 * arguments.grace,
        dry_run=arguments.dry_run,
        reason=arguments.reason,
    )
    sizes, nbytes = sizes_of_versions(files), sum(one.nbytes for one in files)
    sizes = dict(sorted(sizes.items(), key=lambda one: (numbers.get(one[0], 0), one[0])))
    rows = [
        {"version": numbers.get(name), "id": name, "bytes": held} for name, held in sizes.items()
    ]
    whole = {"removed": sorted(sizes), "versions": rows, "files": len(files), "bytes": nbytes}
    would = "would be removed" if arguments.dry_run else "removed"
    lines = [
        f"{name}  {f'version {numbers[name]}' if name in numbers else 'never published'}, "
        f"{size(held)}"
        for name, held in sizes.items()
    ]
    lines.append(f"{len(sizes)} versions, {len(files)} files, {size(nbytes)} {would}")
    print_answer(arguments, {**whole, "dry_run": arguments.dry_run}, "\n".join(lines))
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
