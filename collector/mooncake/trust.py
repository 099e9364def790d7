"""When may an empty answer be believed?

A master that restarts, or takes over, answers 200 with nothing until its clients have mounted their memory
again (one to three seconds); some versions then bring all keys back. Believing that answer would blank L3 at
once. Pure; the caller passes times of one monotonic clock.
"""

from msgspec import Struct

HOLD = 60.0
"""Seconds after which nothing is believed to be nothing, though no client ever came back."""


class Seen(Struct, frozen=True):
    """What one poll of a master shows.

    `keys` and `segments`: whether it lists any. `same_run`: no counter went back since the last believed
    poll, so it is the same process (False also when there are no counters).
    """

    keys: bool
    segments: bool
    same_run: bool


class Trust:
    """Decides for poll after poll of one master whether to believe it.

    `keys` and `segments` are what was believed before the first poll (from the index in Redis).
    """

    def __init__(self, keys: bool, segments: bool) -> None:
        self._keys = keys
        self._segments = segments
        self._agreed = 0
        self._since: float | None = None

    def believe(self, seen: Seen, now: float) -> bool:
        """Whether the poll may be applied. One that lost everything must be agreed to by the next one."""
        lost = (self._keys and not seen.keys) or (self._segments and not seen.segments)
        if lost:
            if self._since is None:
                self._since = now
            # Without segments, only a master that did not restart can know that there are none.
            plausible = seen.segments or seen.same_run
            self._agreed = self._agreed + 1 if plausible else 0
            if self._agreed < 2 and now - self._since < HOLD:
                return False
        self._agreed = 0
        self._since = None
        self._keys, self._segments = seen.keys, seen.segments
        return True
