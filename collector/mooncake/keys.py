"""The keys under which inference engines store KV blocks in Mooncake.

A key names a model, the part of a block that one worker stores (head or tensor-parallel rank, pipeline
rank, KV-cache group, layer) and the block by the hex of its full chain hash. The connectors differ in what
they name and in which order, and a model name may itself hold `@` and `/`: so keys are matched from the
right, by labels.

    vllm-ascend            {model}@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@{hash}
      with groups          ...@pp_rank:0@group:0@cache_role:kv@cache_family:default@{hash}
      layerwise            {model}@pcp0@dcp0@head_or_tp_rank:0@{hash}@{layer}
      layerwise, groups    ...@head_or_tp_rank:0@group:0@cache_role:kv@cache_family:default@layer_id:0@{hash}
      layerwise data path  {model}[@{group}]@{hash}@{head}
      before 0.12          {model}@{world size}@{worker}@{hash}[@{layer}]
    vLLM                   [{prefix}@]{model}{namespace}@tp_rank:0@pcp0@dcp0@pp_rank:0[@group:0]@{hash}
"""

import re
from functools import lru_cache
from sys import intern

from msgspec import Struct

from indexer.blocks import WIDTH


class Part(Struct, frozen=True):
    """Which piece of a block an object is. A block can be loaded when every piece of it is there.

    `lane` names the head or tensor-parallel rank (with the context-parallel ranks, which go along with it),
    `stage` the pipeline rank, `slab` the KV-cache group and layer; "" where a key does not name it.
    """

    lane: str
    stage: str
    slab: str


class BlockKey(Struct, frozen=True):
    """A key that names a block of a vLLM chain."""

    space: str
    """Connector, the labels it writes, and model: parts are comparable only inside one space, also while a
    fleet is being upgraded from one shape of key to the next."""
    model: str
    """What stands before the labels: the model, with a cache prefix or namespace where there is one."""
    part: Part
    block: str


class ForeignKey(Struct, frozen=True):
    """A known key of what is no block of a vLLM chain: another hash domain, another kind of object."""

    family: str


# A digest of 16 bytes (xxhash), 32 bytes (sha256), or several of them (coarse blocks).
_HASH = r"@(?P<hash>(?:[0-9a-f]{32})+)"
_ASCEND = re.compile(
    r"(?P<model>.+)@pcp(?P<pcp>\d+)@dcp(?P<dcp>\d+)@head_or_tp_rank:(?P<rank>\d+)(?:@pp_rank:(?P<stage>\d+))?"
    r"(?:@group:(?P<group>\d+)@cache_role:(?P<role>[^@:]+)@cache_family:(?P<family>[^@:]+))?"
    r"(?:@layer_id:(?P<layer>\d+))?" + _HASH + r"(?:@(?P<tail>\d+))?",
    re.DOTALL,
)
_VLLM = re.compile(
    r"(?P<model>.+)@tp_rank:(?P<rank>\d+)@pcp(?P<pcp>\d+)@dcp(?P<dcp>\d+)@pp_rank:(?P<stage>\d+)"
    r"(?:@group:(?P<group>\d+))?" + _HASH,
    re.DOTALL,
)
_OLD_ASCEND = re.compile(
    r"(?P<model>.+)@(?P<world>[1-9]\d{0,3})@(?P<rank>\d{1,4})" + _HASH + r"(?:@(?P<layer>\d+))?", re.DOTALL
)
_DATA_PATH = re.compile(r"(?P<model>.+?)(?:@(?P<group>\d{1,4}))?" + _HASH + r"@(?P<rank>\d+)", re.DOTALL)

_FOREIGN = (
    ("lmcache", re.compile(r".+@\d+@\d+@-?[0-9a-f]+@[a-z][a-z0-9_.]*(?:@\d+)?(?:@[^@%]+%[^@]*)*", re.DOTALL)),
    ("lmcache", re.compile(r".+@[0-9a-f]{8}@[0-9a-f]+@[0-9a-f]+(?:@.*)?", re.DOTALL)),
    ("sglang", re.compile(r"(?:.+_)?[0-9a-f]{64}_(?:.*_)?[kv]", re.DOTALL)),
    ("sglang", re.compile(r"(?:.+_)?[0-9a-f]{64}_ukv1-[0-9a-f]{16}_.+", re.DOTALL)),
)


_LONGEST = 4096


def parse(key: str) -> BlockKey | ForeignKey | None:
    """What `key` names; None for a shape that is not known. Never raises."""
    if len(key) > _LONGEST:
        return None
    if found := _ASCEND.fullmatch(key):
        role = found["role"]
        if role not in (None, "kv"):
            # The state of a linear-attention layer: kept for few positions, never part of a prefix.
            return ForeignKey(f"ascend-{role}")
        layer = found["layer"] or found["tail"]
        connector = "ascend" + ("+group" if found["group"] else "") + ("+layer" if layer else "")
        slab = _join(found["group"], found["family"], layer)
        return _block(
            connector, found, _join(found["pcp"], found["dcp"], found["rank"]), found["stage"], slab
        )
    if found := _VLLM.fullmatch(key):
        connector = "vllm+group" if found["group"] else "vllm"
        lane = _join(found["pcp"], found["dcp"], found["rank"])
        return _block(connector, found, lane, found["stage"], _join(found["group"]))
    if (found := _OLD_ASCEND.fullmatch(key)) and int(found["rank"]) < int(found["world"]):
        connector = f"ascend@{found['world']}" + ("+layer" if found["layer"] else "")
        return _block(connector, found, found["rank"], None, _join(found["layer"]))
    for family, shape in _FOREIGN:
        if shape.fullmatch(key):
            return ForeignKey(family)
    if found := _DATA_PATH.fullmatch(key):
        return _block("ascend-data", found, found["rank"], None, _join(found["group"]))
    return None


def _block(connector: str, found: re.Match[str], lane: str, stage: str | None, slab: str) -> BlockKey:
    model = found["model"]
    part = _part(lane, stage or "", slab)
    return BlockKey(intern(f"{connector}:{model}"), intern(model), part, found["hash"][-WIDTH:])


@lru_cache(maxsize=65536)
def _part(lane: str, stage: str, slab: str) -> Part:
    """One object for equal parts: there are few parts and many keys."""
    return Part(lane, stage, slab)


def _join(*labels: str | None) -> str:
    return ".".join(filter(None, labels))
