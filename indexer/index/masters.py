"""What the collector last said in the pool's `meta` about each Mooncake master."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

FIELD = "l3:"
"""Prefix of the field of `meta`; the master's URL follows."""


class MasterNote(Struct, frozen=True, omit_defaults=True):
    """One master as of the collector's last note.

    `state`: new, live, holding or stale. `age`: seconds since the last poll that was believed (None: never).
    `lookup`: single, leasing or read-only. `leases`: how many look-ups may have granted one. `required`: the
    parts that a block needs, for each connector and model.
    """

    state: str
    age: float | None = None
    error: str = ""
    lookup: str = ""
    keys: int = 0
    unplaced: int = 0
    unknown: int = 0
    unknown_sample: str = ""
    foreign: Mapping[str, int] = {}
    models: Mapping[str, int] = {}
    required: Mapping[str, tuple[str, ...]] = {}
    leases: int = 0
    poll_seconds: float = 0.0


def field(master: str, note: MasterNote) -> tuple[str, str]:
    """The field of `meta` and its text."""
    return FIELD + master, msgspec.json.encode(note).decode()


def masters(meta: Mapping[str, str]) -> dict[str, MasterNote]:
    """Every master's note by its URL, sorted; a text that is none is left out."""
    found = {}
    for name, text in sorted(meta.items()):
        if name.startswith(FIELD):
            try:
                found[name[len(FIELD) :]] = msgspec.json.decode(text, type=MasterNote)
            except msgspec.MsgspecError:
                continue
    return found
