"""Holder names: one place that can hold blocks.

`l1:<ip>:<rank>`, `l2:<ip>:<rank>`, with `:g<group>` for the further KV-cache groups of a hybrid model
(group 0 has no suffix); `l3:<ip>` and `l3:*` for the pool-wide view of Mooncake memory. An address may hold
colons (IPv6), so names are parsed from the right.
"""

from msgspec import Struct

TIERS = ("l1", "l2", "l3")
POOL_WIDE = "*"
"""The instance name under which the pool-wide view of a tier is kept."""


class Holder(Struct, frozen=True):
    """A parsed holder name. `rank` is None for l3, which is kept per instance."""

    tier: str
    instance: str
    rank: int | None = None
    group: int = 0

    @property
    def name(self) -> str:
        """The name as Redis has it."""
        if self.rank is None:
            return f"{self.tier}:{self.instance}"
        suffix = f":g{self.group}" if self.group else ""
        return f"{self.tier}:{self.instance}:{self.rank}{suffix}"


def parse(name: str) -> Holder:
    """Parse a holder name; raises ValueError naming it when it is none."""
    tier, _, rest = name.partition(":")
    if tier == "l3" and rest:
        return Holder(tier, rest)
    if tier in ("l1", "l2"):
        head, _, tail = rest.rpartition(":")
        group = 0
        if tail.startswith("g") and tail[1:].isdecimal():
            group = int(tail[1:])
            head, _, tail = head.rpartition(":")
        if head and tail.isdecimal():
            return Holder(tier, head, int(tail), group)
    raise ValueError(f"not a holder name: {name!r}")
