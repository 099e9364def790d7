"""When is a block loadable: which parts does it need?

An engine loads a block only when every worker's part of it is there, but no key says how many workers there
are. It is learnt from the keys of the same space (connector and model) that the master lists right now: every
lane that any of them shows, times every stage, times every slab. The configuration may fix an axis instead.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import product

from msgspec import Struct

from collector.mooncake.keys import Part


class Fixed(Struct, frozen=True):
    """Axes that the configuration fixes; 0 leaves an axis to be learnt.

    `tp`: head or tensor-parallel ranks 0..tp-1. `pp`: pipeline ranks 0..pp-1.
    """

    tp: int = 0
    pp: int = 0


def required(seen: Iterable[Part], fixed: Fixed) -> frozenset[Part]:
    """The parts that a block needs, given the parts that its space shows."""
    seen = list(seen)
    if not seen:
        return frozenset()
    lanes = {part.lane for part in seen}
    stages = {part.stage for part in seen}
    if fixed.tp:
        lanes = _fix_lanes(lanes, fixed.tp)
    if fixed.pp and stages != {""}:
        stages = {str(stage) for stage in range(fixed.pp)}
    slabs = {part.slab for part in seen}
    return frozenset(Part(*axes) for axes in product(lanes, stages, slabs))


def _fix_lanes(lanes: set[str], tp: int) -> set[str]:
    """Lanes of ranks below `tp`: those that are shown, and the plain lane of a rank that is not."""
    kept = {lane for lane in lanes if int(lane.rpartition(".")[2]) < tp}
    covered = {int(lane.rpartition(".")[2]) for lane in kept}
    # Context-parallel ranks stand before the rank; a connector without them writes the rank alone.
    prefix = "0.0." if any("." in lane for lane in lanes) else ""
    return kept | {f"{prefix}{rank}" for rank in range(tp) if rank not in covered}


class Space:
    """The parts that one space's listed keys show, counted, and the set that follows from them."""

    def __init__(self, fixed: Fixed) -> None:
        self._fixed = fixed
        self._seen: Counter[Part] = Counter()
        self._required: frozenset[Part] | None = None

    @property
    def required(self) -> frozenset[Part]:
        """The parts that a block of this space needs; empty when the space has no keys."""
        if self._required is None:
            self._required = required(self._seen, self._fixed)
        return self._required

    def add(self, part: Part) -> bool:
        """Count one more key; True when the part was not shown before."""
        self._seen[part] += 1
        if self._seen[part] > 1:
            return False
        self._required = None
        return True

    def remove(self, part: Part) -> bool:
        """Count one key less; True when no key shows the part any more."""
        self._seen[part] -= 1
        if self._seen[part] > 0:
            return False
        del self._seen[part]
        self._required = None
        return True

    def __len__(self) -> int:
        return self._seen.total()
