"""Which slot each holder has: the reader's only cache, valid under one nonce."""

from collections.abc import Iterable, Mapping

from indexer.holders import POOL_WIDE, parse


class TierSlots:
    """The slots of one tier, arranged for lookups."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.slots = slots
        self.ranks: dict[str, dict[int, tuple[int, ...]]] = {}
        """instance -> rank -> slots of the rank's KV-cache groups; l3 has the one rank 0."""
        self.masks: dict[str, int] = {}
        """instance -> the bits of all its holders."""
        for name, slot in slots.items():
            holder = parse(name)
            ranks = self.ranks.setdefault(holder.instance, {})
            rank = holder.rank or 0
            ranks[rank] = (*ranks.get(rank, ()), slot)
            self.masks[holder.instance] = self.masks.get(holder.instance, 0) | 1 << slot
        self.all = 0
        """The bits of every holder."""
        for mask in self.masks.values():
            self.all |= mask

    def mask(self, instances: Iterable[str]) -> int:
        """The bits of the instances' holders; unknown instances have none."""
        mask = 0
        known = self.masks
        for instance in instances:
            mask |= known.get(instance, 0)
        return mask

    def names(self, mask: int) -> list[str]:
        """The holders whose bits are in `mask`."""
        return [name for name, slot in self.slots.items() if mask >> slot & 1]


class SlotMap:
    """The slots of some tiers. `nonce` None: true when asked, but not to be asked under."""

    def __init__(self, nonce: bytes | None, tiers: Mapping[str, Mapping[str, int]]) -> None:
        self.nonce = nonce
        self.tiers = {tier: TierSlots(slots) for tier, slots in tiers.items()}
        self.instances = frozenset(name for tier in self.tiers.values() for name in tier.masks) - {POOL_WIDE}
        """Those that have a holder in any tier."""
