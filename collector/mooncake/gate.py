"""The cheap question before the expensive ones: did a Mooncake master change at all?

`/metrics` is a few kilobytes; the list of keys may be a hundred megabytes. Every write moves one of the
master's counters, and reads (ours too) move only counters that are left out here. A counter that we do not
know counts as a write: it can cost a needless listing, never a missed change.
"""

import re

from msgspec import Struct

# Reads, pings and bookkeeping: they move without any change of an object's place.
_NOISE = re.compile(
    r"_(?:ping|exist_key|get_replica_list|get_replica_list_by_regex|query|query_ip|query_task|fetch_tasks"
    r"|batch_exist_key|batch_get_replica_list|batch_query_ip|update_task|attempted_evictions|active_clients"
    r"|soft_pin_key_count|promotion_rejected|promotion_candidate|cache|cache_hit|valid_get|total_get)(?:_|$)"
)
_LINE = re.compile(r"^((?:master|segment)_[a-z0-9_]+(?:\{[^}\n]*\})?) (\S+)$", re.MULTILINE)


class Gauges(Struct, frozen=True):
    """What one reading of `/metrics` says about changes."""

    values: frozenset[tuple[str, str]]
    """Every line that moves with a change, as (name with labels, value)."""

    @property
    def disk(self) -> bool:
        """Whether the master says that it keeps objects in files."""
        return any("_file_" in name for name, _ in self.values)

    def same_run(self, before: "Gauges") -> bool:
        """Whether this reading can come from the same process as an earlier one: no counter went back."""
        now = dict(self.values)
        return all(
            float(now.get(name, 0)) >= float(value)
            for name, value in before.values
            if name.endswith("_total")
        )


def read(text: str) -> Gauges:
    """Pick the telling lines out of a `/metrics` text. A master leaves out counters that are still zero."""
    found = [
        (name, value) for name, value in _LINE.findall(text) if not _NOISE.search(name.partition("{")[0])
    ]
    # A zero that appears is no change.
    return Gauges(frozenset(item for item in found if item[1] != "0"))


class Gate:
    """Holds while nothing changed.

    A counter may be raised a moment before or after its effect can be listed. So a change opens the gate for
    the poll that sees it and for the one after.
    """

    def __init__(self) -> None:
        self._last: Gauges | None = None
        self._settled = False

    def holds(self, gauges: Gauges) -> bool:
        """Take a reading, made before the listing that it decides on; True: the listing may be left out."""
        same = self._last is not None and gauges.values == self._last.values
        held = same and self._settled
        self._settled = same
        self._last = gauges
        return held

    def reset(self) -> None:
        """Forget everything: the next two polls list."""
        self._last = None
        self._settled = False
