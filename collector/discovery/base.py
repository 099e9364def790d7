"""What discovery tells the rest of the collector: immutable snapshots of engines and Mooncake masters.

A source knows one way to find them (a list in the configuration, a watched file, Kubernetes). It knows
nothing of Redis or of streams, and it keeps no history: who is new, changed or gone is decided by
`collector.membership` from one snapshot after another.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct


class Rank(Struct, frozen=True):
    """The ZMQ URLs to connect to for one data-parallel rank; `replay` is None without such a socket."""

    events: str
    replay: str | None = None


class EngineTarget(Struct, frozen=True):
    """One serving instance. The index in `ranks` is the data-parallel rank; no ranks: an L3 host only.

    `incarnation` names one run of the engine process (Kubernetes: pod UID and container restart count); None
    when the source can't tell runs apart, and then only the stream itself shows a restart.
    """

    ip: str
    incarnation: str | None
    ranks: tuple[Rank, ...]


class Master(Struct, frozen=True):
    """A Mooncake master's admin HTTP API, as a URL without a trailing slash."""

    http: str


class Gone(Struct, frozen=True):
    """An engine that the source saw being deleted. The identity matters: the address may be in use again."""

    ip: str
    incarnation: str


class Snapshot(Struct, frozen=True):
    """Everything a source knows at one moment.

    `complete` is False when the source could not see everything; then an engine's absence proves nothing.
    `error` says why, for people. `gone` are explicit deletions since the snapshot before.
    """

    engines: tuple[EngineTarget, ...] = ()
    masters: tuple[Master, ...] = ()
    complete: bool = True
    error: str | None = None
    gone: tuple[Gone, ...] = ()


class Source(Protocol):
    """One way to find engines."""

    def snapshots(self) -> AsyncIterator[Snapshot]:
        """Yield the present state at once and again after every change (it may repeat an equal one).

        Never ends and never raises for what may pass by itself (a file being edited, an API server away): it
        then yields the last good state with `complete=False` and the reason in `error`.
        """
        ...
