"""Since when a job does not take rows that are there: kept in its model store from run to run."""

from __future__ import annotations

import contextlib
import datetime
import json
from typing import Any

from streampca.models.model_store import ModelStore

NAME = "behind.json"  # in the model store, only while a job is behind


def behind_since(place: str, first: int, behind: int) -> str:
    """When a refresh first found the sample ``first`` not taken: ISO 8601, UTC; "" where none is.

    place : of the model store.  behind : how many samples are not taken. Changes nothing.
    """
    if not behind:
        return ""
    told = _told(ModelStore(place))
    return str(told["since"]) if told.get("first") == first else _now()


def note_behind(place: str, first: int, behind: int) -> str:
    """The same, kept for the next refresh. Cost: one read, and a write where it is another."""
    store = ModelStore(place)
    if not store.exists():
        return behind_since(place, first, behind)
    told = _told(store)
    since = behind_since(place, first, behind)
    if not behind and told:
        store.backend.delete(NAME)
    elif behind and told != {"first": first, "since": since}:
        store.backend.put(NAME, json.dumps({"first": first, "since": since}).encode())
    return since


def seconds_since(since: str) -> float:
    """From then to now; 0.0 of ""."""
    if not since:
        return 0.0
    begun = datetime.datetime.fromisoformat(since)
    return (datetime.datetime.now(datetime.UTC) - begun).total_seconds()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _told(store: ModelStore) -> dict[str, Any]:
    """What was kept; {} where nothing was, or something else."""
    with contextlib.suppress(ValueError, TypeError):
        told = json.loads(store.backend.get(NAME) or b"{}")
        if isinstance(told, dict) and isinstance(told.get("since"), str):
            seconds_since(told["since"])
            return told
    return {}
