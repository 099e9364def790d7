"""Access patterns of other KV-cache indexes in Redis, and layouts that we did not choose.

Written from what those systems ask Redis and how they turn the replies into a prefix length for each pod;
none of their code is here. Each fills an empty Redis with `held` (pod -> blocks from the prompt's start on)
and answers with the length of the prefix that each candidate holds. They use the blocking client, which costs
them less than an event loop would.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import redis

Held = Mapping[str, int]
Lengths = dict[str, int]


class Pattern(Protocol):
    """One way to keep and ask the index."""

    name: str
    commands: tuple[str, ...]
    """The top-level commands of a lookup, to add up Redis's own time."""

    def fill(self, blocks: Sequence[int], held: Held) -> None: ...
    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths: ...


def prefixes(holders: Iterable[Iterable[str]]) -> Lengths:
    """Prefix lengths from the holders of each block, in order."""
    lengths: Lengths = {}
    for position, names in enumerate(holders):
        if position == 0:
            lengths = dict.fromkeys(names, 1)
            continue
        for name in names:
            if lengths.get(name) == position:
                lengths[name] = position + 1
    return lengths


def until_empty(replies: Iterable[Any]) -> Iterable[Any]:
    """Replies before the first block that nobody holds."""
    for reply in replies:
        if not reply:
            return
        yield reply


class Llmd:
    """A hash for each block, with JSON for each holder as the field; HKEYS a block, in one pipeline."""

    name = "llmd"
    commands = ("hkeys",)

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def fill(self, blocks: Sequence[int], held: Held) -> None:
        pipe = self._client.pipeline(transaction=False)
        entry = {"DeviceTier": "gpu", "Speculative": False, "HasGroup": False, "GroupIdx": 0}
        for i, block in enumerate(blocks):
            fields = {
                json.dumps({"PodIdentifier": pod, **entry}): "" for pod, length in held.items() if i < length
            }
            if fields:
                pipe.hset(str(block), mapping=fields)
        pipe.execute()

    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        pipe = self._client.pipeline(transaction=False)
        for block in blocks:
            pipe.hkeys(str(block))
        replies = until_empty(pipe.execute())
        return prefixes([json.loads(field)["PodIdentifier"] for field in reply] for reply in replies)


class Kthena:
    """A hash for each block, pod -> time of the write; HGETALL a block, in one pipeline."""

    name = "kthena"
    commands = ("hgetall",)

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def fill(self, blocks: Sequence[int], held: Held) -> None:
        pipe = self._client.pipeline(transaction=False)
        now = int(time.time())
        for i, block in enumerate(blocks):
            fields = {pod: now for pod, length in held.items() if i < length}
            if fields:
                pipe.hset(f"matrix:kv:block:m@{block}", mapping=fields)
        pipe.execute()

    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        pipe = self._client.pipeline(transaction=False)
        for block in blocks:
            pipe.hgetall(f"matrix:kv:block:m@{block}")
        replies = until_empty(pipe.execute())
        return prefixes([pod.decode() for pod, at in reply.items() if int(at) > 0] for reply in replies)


class Mori:
    """A hash for each block, node -> bit mask of tiers; one script that reads all of them."""

    name = "mori"
    commands = ("evalsha",)

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._script = client.register_script(
            "local all = {} for i, key in ipairs(KEYS) do all[i] = redis.call('HGETALL', key) end return all"
        )

    def fill(self, blocks: Sequence[int], held: Held) -> None:
        pipe = self._client.pipeline(transaction=False)
        for i, block in enumerate(blocks):
            fields = {pod: 1 for pod, length in held.items() if i < length}
            if fields:
                pipe.hset(f"{{umbp:m}}:extkv:{block}", mapping=fields)
        pipe.execute()

    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        replies = self._script(keys=[f"{{umbp:m}}:extkv:{block}" for block in blocks])
        return prefixes(
            [pod.decode() for pod, tiers in zip(reply[::2], reply[1::2], strict=True) if int(tiers) & 1]
            for reply in until_empty(replies)
        )


class SetPerBlock:
    """A set of pods for each block; a script asks SMISMEMBER for those that are still alive."""

    name = "lua: set a block"
    commands = ("evalsha",)

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._script = client.register_script("""
            local alive, lengths = {}, {}
            for i = 1, #ARGV do alive[i], lengths[i] = i, 0 end
            for b, key in ipairs(KEYS) do
              local names = {}
              for k, i in ipairs(alive) do names[k] = ARGV[i] end
              local kept = {}
              for k, has in ipairs(redis.call('SMISMEMBER', key, unpack(names))) do
                if has == 1 then kept[#kept + 1] = alive[k] lengths[alive[k]] = b end
              end
              alive = kept
              if #alive == 0 then break end
            end
            return lengths""")

    def fill(self, blocks: Sequence[int], held: Held) -> None:
        pipe = self._client.pipeline(transaction=False)
        for i, block in enumerate(blocks):
            pods = [pod for pod, length in held.items() if i < length]
            if pods:
                pipe.sadd(f"b:{block}", *pods)
        pipe.execute()

    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        lengths = self._script(keys=[f"b:{block}" for block in blocks], args=pods)
        return dict(zip(pods, lengths, strict=True))


class SetPerPod:
    """A set of blocks for each pod; a script asks SMISMEMBER for 32 blocks at a time."""

    name = "lua: set a pod"
    commands = ("evalsha",)

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._script = client.register_script("""
            local function length(key)
              for first = 1, #ARGV, 32 do
                local last = math.min(first + 31, #ARGV)
                for i, has in ipairs(redis.call('SMISMEMBER', key, unpack(ARGV, first, last))) do
                  if has == 0 then return first + i - 2 end
                end
              end
              return #ARGV
            end
            local lengths = {}
            for i, key in ipairs(KEYS) do lengths[i] = length(key) end
            return lengths""")

    def fill(self, blocks: Sequence[int], held: Held) -> None:
        pipe = self._client.pipeline(transaction=False)
        for pod, length in held.items():
            if length:
                pipe.sadd(f"p:{pod}", *blocks[:length])
        pipe.execute()

    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        lengths = self._script(keys=[f"p:{pod}" for pod in pods], args=list(blocks))
        return dict(zip(pods, lengths, strict=True))


class BitmapsInPython:
    """Bitmaps as ours, read whole by HMGET; Python does what our script does."""

    name = "py: bitmaps"
    commands = ("hmget",)

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def fill(self, blocks: Sequence[int], held: Held) -> None:
        pods = list(held)
        bitmaps = {
            f"{block:016x}": sum(1 << slot for slot, pod in enumerate(pods) if i < held[pod]).to_bytes(
                (len(pods) + 7) // 8, "little"
            )
            for i, block in enumerate(blocks)
        }
        self._client.hset("bitmaps", mapping=bitmaps)  # type: ignore[arg-type]
        self._pods = pods

    def lookup(self, blocks: Sequence[int], pods: Sequence[str]) -> Lengths:
        alive = (1 << len(self._pods)) - 1
        lengths: Lengths = {}
        bitmaps: list[bytes | None] = self._client.hmget("bitmaps", [f"{block:016x}" for block in blocks])  # type: ignore[assignment]
        for position, bitmap in enumerate(bitmaps):
            now = alive & int.from_bytes(bitmap or b"", "little")
            fallen = alive ^ now
            while fallen:
                low = fallen & -fallen
                lengths[self._pods[low.bit_length() - 1]] = position
                fallen ^= low
            alive = now
            if not alive:
                break
        for slot, pod in enumerate(self._pods):
            if alive >> slot & 1:
                lengths[pod] = len(blocks)
        return lengths


PEERS = (Llmd, Kthena, Mori)
LAYOUTS = (SetPerBlock, SetPerPod, BitmapsInPython)
