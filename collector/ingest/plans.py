"""What a tracker can ask for next."""

from msgspec import Struct

from collector.ingest.frames import Frame


class Take(Struct, frozen=True):
    """Apply these consecutive batches. `skip_from`: batches from there to the first are given up as lost.
    `unproven`: nothing shows that the engine is still the one that Redis knows."""

    frames: tuple[Frame, ...]
    skip_from: int | None = None
    unproven: bool = False


class Open(Struct, frozen=True):
    """Begin a new life with stamp `floor`; connection `epoch` is with it. `why` is for people.
    `forget`: what was applied before is not to be applied again."""

    floor: bytes
    epoch: int
    why: str
    forget: bool = False


class Recover(Struct, frozen=True):
    """Ask the replay socket from `start`; report by `replayed`, `unpublished`, and at the end `recovered`."""

    start: int


Plan = Take | Open | Recover | None
"""None: nothing now."""
