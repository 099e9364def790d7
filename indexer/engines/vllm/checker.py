"""The self-check: do a stream's hashes follow from its tokens under the configured rule?

A silent 0 % is what a wrong seed, algorithm, block size or dialect looks like; engines send the tokens with
the hashes, so it can be told.
"""

from collections import OrderedDict
from collections.abc import Sequence

from indexer.blocks import MASK, WIDTH, unpack
from indexer.engines.base import Verdict
from indexer.engines.events import Stored
from indexer.engines.vllm.algorithms import as_ids
from indexer.engines.vllm.diagnose import Diagnosis, Puzzle, named
from indexer.engines.vllm.extra_keys import Extra, Form
from indexer.engines.vllm.hashing import VllmHashRule
from indexer.errors import HashError

KEPT_DIGESTS = 4096
"""Full digests kept a stream (about 0.2 KiB each), so that events with integer parents can be checked."""

SURE_AFTER = 16
"""Unexplained first blocks, with none that fits, before a stream that tells no extra keys is called wrong."""

_LOOKAHEAD = (
    "look-ahead: engine hashes tokens after each block (EAGLE or MTP, vLLM >= 0.33), which no prompt tells;"
    " set disable_lookahead_block_hashes there"
)


class VllmChecker:
    """Checks one stream. See Checker."""

    def __init__(self, rule: VllmHashRule) -> None:
        self._rule = rule
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self._diagnosis: Diagnosis | None = None
        self._fitted = False
        self._unexplained = 0

    def check(self, stored: Stored) -> Verdict | None:
        """See Checker."""
        count = len(stored.hashes)
        size = stored.block_size
        if stored.tier != "l1" or count == 0 or size < 1 or len(stored.token_ids) != count * size:
            return None
        if stored.lookahead:
            return Verdict(False, _LOOKAHEAD)
        parent = self._parent(stored)
        keys = {form: _keys(form, stored) for form in Form}
        try:
            ids = as_ids(stored.token_ids)  # type: ignore[arg-type]
        except HashError:
            return None
        if parent is None or (stored.extra_keys is not None and len(stored.extra_keys) != count):
            return None
        expected = unpack(stored.blocks)
        wrong, before = 0, parent
        for form in self._rule.forms:
            key = keys[form]
            if key is None:
                continue
            digests = self._rule.algorithm.chain(parent, ids, size, key)
            fits = next((i for i, d in enumerate(digests) if d[-8:].hex() != expected[i]), count)
            if fits == count:
                self._keep(digests)
                self._fitted = True
                return Verdict(True)
            if fits > wrong:
                wrong, before = fits, digests[fits - 1]
        if any(keys[form] is None for form in self._rule.forms):
            return None
        first = wrong == 0 and stored.parent is None
        return self._explain(stored, keys, wrong, None if first else before)

    def _explain(
        self, stored: Stored, keys: dict[Form, list[Extra] | None], index: int, parent: bytes | None
    ) -> Verdict | None:
        diagnosis = self._diagnosis = self._diagnosis or Diagnosis(self._rule)
        puzzle = _puzzle(stored, keys, index, parent)
        guess = diagnosis.explain(puzzle)
        if guess is not None:
            return Verdict(False, diagnosis.cause(guess))
        finer = diagnosis.finer_block_size(puzzle)
        if finer is not None:
            return Verdict(
                False, f"block size: engine hashes every {finer} tokens, its events say {stored.block_size}"
            )
        if stored.extra_keys is None and not self._is_sure(parent):
            return None
        if any(key is None for key in keys.values()):
            return Verdict(
                False,
                f"dialect: LoRA blocks do not follow {self._rule.forms[0].value} with any usual seed;"
                " vLLM >= 0.31 hashes the adapter's path, too",
            )
        if parent is not None:
            return Verdict(False, "unknown: no algorithm, dialect or block size yields the engine's hashes")
        own = stored.hashes[index]
        if isinstance(own, bytes) and len(stored.hashes) > index + 1:
            # The block after it does not depend on the seed, and its parent is told in full.
            guess = diagnosis.explain(_puzzle(stored, keys, index + 1, own))
            if guess is not None and guess.distance:
                return Verdict(False, f"{diagnosis.cause(guess)}; seed: none that is usual fits")
        return Verdict(
            False,
            f"seed: engine hashes follow neither the configured PYTHONHASHSEED {named(self._rule.seed)} nor a"
            " usual one; before vLLM 0.29, and for xxhash, an unset seed is random",
        )

    def _is_sure(self, parent: bytes | None) -> bool:
        """Without extra keys a block that does not fit may be salted; not if none ever fits."""
        if parent is None:
            self._unexplained += 1
        return not self._fitted and self._unexplained >= SURE_AFTER

    def _parent(self, stored: Stored) -> bytes | None:
        parent = stored.parent
        if parent is None:
            return self._rule.none_hash
        if isinstance(parent, bytes):
            # Up to 0.23 a coarse block's hash is its fine blocks' digests, joined; the last one counts.
            return parent[-self._rule.algorithm.size :]
        return self._digests.get(parent & MASK)

    def _keep(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            key = int.from_bytes(digest[-8:])
            self._digests[key] = digest
            self._digests.move_to_end(key)
        while len(self._digests) > KEPT_DIGESTS:
            self._digests.popitem(last=False)


def _puzzle(stored: Stored, keys: dict[Form, list[Extra] | None], index: int, parent: bytes | None) -> Puzzle:
    size = stored.block_size
    return Puzzle(
        parent,
        stored.token_ids[index * size : (index + 1) * size],  # type: ignore[arg-type]
        {form: key[index] for form, key in keys.items() if key is not None},
        stored.blocks[index * WIDTH : (index + 1) * WIDTH],
    )


def _keys(form: Form, stored: Stored) -> list[Extra] | None:
    """The extra keys of an event as that form hashes them; None when they cannot be told."""
    told = stored.extra_keys
    if told is None:
        told = [[stored.lora_name] if stored.lora_name else None] * len(stored.hashes)
    keys: list[Extra] = []
    for index, items in enumerate(told):
        if not items:
            keys.append(None)
            continue
        if not isinstance(items, list):
            return None
        first = index == 0 and stored.parent is None
        key = tuple(_item(form, item, stored.lora_name, first) for item in items)
        if None in key:
            return None
        keys.append(key)
    return keys


def _item(form: Form, item: object, lora_name: str | None, first: bool) -> object:
    """An item of an event's extra key, where it stands untagged, as `form` hashes it; None if untellable."""
    match item:
        case [str(identifier), int(offset)]:
            if form is Form.TAGGED:
                return ("mm", identifier, offset)
            return (identifier, offset) if form is Form.OFFSET else identifier
        case bytes():
            return ("prompt_embeds", item) if form is Form.TAGGED else item
        case str() if form is not Form.TAGGED:
            return item
        case str() if first and item != lora_name:
            return ("cache_salt", item)
    return None
