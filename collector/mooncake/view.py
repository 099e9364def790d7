"""What one Mooncake master holds, as far as it was told: a pure model of keys, places and loadable blocks.

Fed with listings (which keys exist) and places (at which endpoints a key's bytes are in memory), it answers
which holders have which block. Only what was touched is computed again.
"""

from collections.abc import Callable, Iterable
from itertools import islice

from collector.mooncake.completeness import Fixed, Space
from collector.mooncake.keys import BlockKey, Part
from indexer.holders import POOL_WIDE

Places = frozenset[str]
"""Endpoints where an object lies in memory; empty: nowhere (only on disk)."""

_NOWHERE: Places = frozenset()
_NOBODY: frozenset[str] = frozenset()


class View:
    """Blocks by holder for one master.

    `instance_of` names the instance at an endpoint, or "" when nobody can say where it is. `require_all`: a
    block counts for an instance only when the instance has every part of it; else one part is enough.
    """

    def __init__(self, instance_of: Callable[[str], str], *, require_all: bool, fixed: Fixed) -> None:
        self._instance_of = instance_of
        self._require_all = require_all
        self._fixed = fixed
        self._keys: dict[str, tuple[BlockKey, Places | None]] = {}
        self._unplaced: set[str] = set()
        self._spaces: dict[str, Space] = {}
        self._blocks: dict[str, dict[tuple[str, Part], Places]] = {}
        self._space_blocks: dict[str, dict[str, int]] = {}
        self._claims: dict[str, frozenset[str]] = {}
        self._dirty: set[str] = set()
        self._instances: dict[Places, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @property
    def keys(self) -> Iterable[str]:
        """Every key that the view knows, placed or not."""
        return self._keys.keys()

    @property
    def unplaced(self) -> list[str]:
        """Keys that are listed and whose place was never told."""
        return list(self._unplaced)

    def add(self, key: str, named: BlockKey) -> None:
        """A key that the master lists; its place is not known yet. A known key stays as it is."""
        if key in self._keys:
            return
        self._keys[key] = (named, None)
        self._unplaced.add(key)
        space = self._spaces.get(named.space)
        if space is None:
            space = self._spaces[named.space] = Space(self._fixed)
            self._space_blocks[named.space] = {}
        blocks = self._space_blocks[named.space]
        blocks[named.block] = blocks.get(named.block, 0) + 1
        if space.add(named.part):
            self._dirty.update(blocks)

    def place(self, key: str, places: Places) -> None:
        """Where a known key lies in memory. Unknown keys are ignored: they vanished meanwhile."""
        found = self._keys.get(key)
        if found is None or found[1] == places:
            return
        named = found[0]
        self._keys[key] = (named, places)
        self._unplaced.discard(key)
        self._put(named, places)

    def remove(self, key: str) -> None:
        """A key that is no longer listed."""
        found = self._keys.pop(key, None)
        if found is None:
            return
        self._unplaced.discard(key)
        named = found[0]
        self._put(named, _NOWHERE)
        blocks = self._space_blocks[named.space]
        blocks[named.block] -= 1
        if not blocks[named.block]:
            del blocks[named.block]
        if self._spaces[named.space].remove(named.part):
            self._dirty.update(blocks)
        if not blocks:
            del self._spaces[named.space], self._space_blocks[named.space]

    def drop(self, gone: Callable[[str], bool]) -> None:
        """Forget every place at an endpoint for which `gone` is true."""
        lost = {place for places in self._distinct() for place in places if gone(place)}
        if not lost:
            return
        for key, (_, places) in list(self._keys.items()):
            if places and not places.isdisjoint(lost):
                self.place(key, places - lost)

    def rename(self) -> None:
        """Endpoints may belong to other instances now: compute every block again."""
        self._instances.clear()
        self._dirty.update(self._blocks)

    @property
    def settled(self) -> bool:
        """Whether the claims are up to date."""
        return not self._dirty

    def settle(self, limit: int | None = None) -> set[str]:
        """Bring the claims of at most `limit` blocks up to date; those whose holders changed."""
        changed = set()
        if limit is None or limit >= len(self._dirty):
            now, self._dirty = self._dirty, set()
        else:
            now = set(islice(self._dirty, limit))
            self._dirty -= now
        for block in now:
            claims = self._holders(block)
            if claims != self._claims.get(block, _NOBODY):
                changed.add(block)
                if claims:
                    self._claims[block] = claims
                else:
                    del self._claims[block]
        return changed

    def holders(self, block: str) -> frozenset[str]:
        """The instances that hold a block, and "*" when it is loadable from the pool (as of `settle`)."""
        return self._claims.get(block, _NOBODY)

    @property
    def claims(self) -> dict[str, frozenset[str]]:
        """The holders of every block that has any (as of `settle`). Not to be changed."""
        return self._claims

    def spaces(self) -> dict[str, frozenset[Part]]:
        """The parts that a block needs, for each connector and model."""
        return {name: space.required for name, space in self._spaces.items()}

    def counts(self) -> dict[str, int]:
        """How many keys each connector and model has."""
        return {name: len(space) for name, space in self._spaces.items()}

    def _put(self, named: BlockKey, places: Places) -> None:
        parts = self._blocks.setdefault(named.block, {})
        part = (named.space, named.part)
        if places:
            parts[part] = places
        else:
            parts.pop(part, None)
            if not parts:
                del self._blocks[named.block]
        self._dirty.add(named.block)

    def _holders(self, block: str) -> frozenset[str]:
        parts = self._blocks.get(block)
        if not parts:
            return _NOBODY
        if not self._require_all:
            return self._where(frozenset().union(*parts.values())) | {POOL_WIDE}
        holders: frozenset[str] = _NOBODY
        for name in {space for space, _ in parts}:
            needed = [parts.get((name, part)) for part in self._spaces[name].required]
            if any(places is None for places in needed):
                continue
            instances = [self._where(places) for places in needed if places is not None]
            holders = holders | frozenset.intersection(*instances) | {POOL_WIDE}
        return holders

    def _where(self, places: Places) -> frozenset[str]:
        found = self._instances.get(places)
        if found is None:
            found = frozenset(map(self._instance_of, places)) - {""}
            self._instances[places] = found
        return found

    def _distinct(self) -> set[Places]:
        return {places for _, places in self._keys.values() if places}
