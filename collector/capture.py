"""Captures: what a real engine received and published, one JSON object a line, mostly gzipped.

The first line is `meta`; each `call` line holds the requests of one call into the engine, with how many of
their tokens it took from its cache, and the ZMQ frames that it published meanwhile. `reset` lines are calls
of its cache reset. Other lines (what its replay socket answered) are no input and are left out.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from indexer.errors import CacheIndexerError


class CaptureError(CacheIndexerError):
    """The file is no capture. The message names file and line."""


class Frame(Struct, frozen=True):
    """One published message. `at`: seconds since the epoch when it was received."""

    rank: int
    topic: bytes
    seq: int
    payload: bytes
    at: float


class Request(Struct, frozen=True):
    """One request as the engine saw it. `cached`: prompt tokens it reused, None when not recorded."""

    prompt: tuple[int, ...]
    cache_salt: str | None
    lora_name: str | None
    lora_path: str | None
    cached: int | None


class Step(Struct, frozen=True):
    """One call into the engine and what it published because of it."""

    requests: tuple[Request, ...]
    frames: tuple[Frame, ...]


class Capture(Struct, frozen=True):
    """A whole recording. `version`: the engine's; `block_size` in tokens, None when not recorded."""

    name: str
    version: str
    block_size: int | None
    algo: str
    seed: str | None
    ranks: int
    steps: tuple[Step, ...]

    @property
    def frames(self) -> Iterator[Frame]:
        """All frames in the order of their steps."""
        return (frame for step in self.steps for frame in step.frames)

    @property
    def replay_has_topic(self) -> bool:
        """Whether this engine's replay answers carry the topic (from 0.26 on)."""
        major, minor = (int(part) for part in self.version.split(".")[:2])
        return (major, minor) >= (0, 26)


def load(path: Path | str) -> Capture:
    """Read a capture, gzipped or plain. Raises CaptureError when it is none."""
    path = Path(path)
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise CaptureError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error
    meta: dict[str, Any] = {}
    steps: list[Step] = []
    number = 0
    try:
        for number, text in enumerate(content.splitlines(), 1):
            line = json.loads(text)
            if number == 1:
                meta = _meta(line)
            elif line["kind"] in ("call", "reset"):
                steps.append(_step(line, meta.get("endpoint_port")))
    except (ValueError, KeyError, TypeError) as error:
        raise CaptureError(f"{path}, line {number}: not a capture ({error!r})") from error
    if not meta:
        raise CaptureError(f"{path}: not a capture (empty)")
    return Capture(
        name=path.name.removesuffix(".gz").removesuffix(".jsonl"),
        version=meta["version"],
        block_size=meta.get("block_size"),
        algo=meta.get("algo", "sha256_cbor"),
        seed=meta.get("PYTHONHASHSEED", "0"),
        ranks=meta.get("dp", 1),
        steps=tuple(steps),
    )


def _meta(line: dict[str, Any]) -> dict[str, Any]:
    if line["kind"] != "meta":
        raise ValueError("the first line must be of kind meta")
    if len(line["version"].split(".")) < 2:
        raise ValueError(f"version {line['version']!r}")
    return line


def _step(line: dict[str, Any], base_port: int | None) -> Step:
    # A call of one request may be written without the list around it.
    requests = line.get("requests", [line] if "prompt_token_ids" in line else [])
    return Step(
        requests=tuple(_request(r) for r in requests),
        frames=tuple(_frame(f, base_port) for f in line["frames"]),
    )


def _request(line: dict[str, Any]) -> Request:
    name, _, path = line.get("lora") or (None, None, None)
    return Request(
        prompt=tuple(line["prompt_token_ids"]),
        cache_salt=line.get("cache_salt"),
        lora_name=name,
        lora_path=path,
        cached=line.get("num_cached_tokens"),
    )


def _frame(line: dict[str, Any], base_port: int | None) -> Frame:
    topic, seq, payload = (bytes.fromhex(part) for part in line["parts_hex"])
    # A rank publishes on its own port, counted from the first rank's.
    rank = 0 if base_port is None else line["port"] - base_port
    return Frame(rank=rank, topic=topic, seq=int.from_bytes(seq, "big"), payload=payload, at=line["t"])
