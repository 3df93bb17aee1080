"""Addresses of Dask schedulers: looked at, then tried, before a client is made for one.

A client of Dask's waits for its whole time-out at an address where nobody listens, or that does not
exist, and as long again when it is thrown away.
"""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from streampca.errors import ClusterError, InvalidInputError
from streampca.shown import hide_secrets

BY_TCP = ("tcp", "tls", "ws", "wss")
SCHEMES = (*BY_TCP, "ucx", "inproc")
PATIENCE = 2.0  # seconds for a scheduler that is about to listen
PAUSE = 0.1  # seconds between two attempts


def connect(address: Any, seconds: float, security: Any = None, repair: str = "") -> Any:
    """A client of the scheduler at an address, or of a cluster object.

    repair : the end of the message. Raises InvalidInputError for what is no address, ClusterError
    where no scheduler answers.
    """
    if isinstance(address, str):
        check_address(address)
    from distributed import Client

    shown = hide_secrets(address) if isinstance(address, str) else "the new cluster"
    client: Any = Client.__new__(Client)
    try:
        if isinstance(address, str):
            _await_listener(address, seconds)
            # what listens may be no scheduler, and its answer one that Dask waits for without end
            client.start = partial(client.start, callback_timeout=seconds + PATIENCE)
        client.__init__(address, set_as_default=False, timeout=seconds, security=security)
    except Exception as error:  # what Dask makes of the answer of something else is of any kind
        client.status = "closed"  # there is nothing to close, which would take its time
        raise ClusterError(
            f"no Dask scheduler answers at {shown} within {seconds:g} s "
            f"({hide_secrets(str(error))}). Start one (dask scheduler), or {repair}."
        ) from None
    return client


def check_address(address: str) -> None:
    """Raises InvalidInputError, which shows no password, for what is no scheduler's address."""
    try:
        parts = urlsplit(address)
        local = parts.scheme == "inproc"
        good = parts.scheme in SCHEMES and (local or bool(parts.hostname and parts.port))
    except ValueError:  # a port of letters, or beyond 65535
        good = False
    if "@" in address:
        raise InvalidInputError(
            f"scheduler={hide_secrets(address)!r}: an address has no user or password; "
            "certificates go into Dask's configuration, or the section cluster.security"
        )
    if not good:
        raise InvalidInputError(
            f"scheduler={hide_secrets(address)!r}; expected an address such as "
            "'tcp://127.0.0.1:8786' or 'tls://host:8786'"
        )


def _await_listener(address: str, seconds: float) -> None:
    """Return when somebody takes connections there. Raises OSError.

    A name that does not exist is refused at once; where nobody listens it is tried again for at
    most PATIENCE.
    """
    parts = urlsplit(address)
    if parts.scheme not in BY_TCP:
        return
    end = time.monotonic() + min(PATIENCE, seconds)
    while True:
        try:
            socket.create_connection((parts.hostname, parts.port), seconds).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() >= end:
                raise
        time.sleep(PAUSE)
