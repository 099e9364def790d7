"""Reads the recorded engines in tests/data: what was asked, and every frame that was published."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def rows(name: str) -> list[dict[str, Any]]:
    """All lines of a capture, the `meta` line first."""
    text = gzip.decompress((DATA / f"{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def frames(name: str) -> Iterator[list[bytes]]:
    """Every live frame in order, as its parts: topic, sequence, payload."""
    for row in rows(name):
        if row["kind"] == "replay":
            continue
        for frame in row.get("frames", ()):
            yield [bytes.fromhex(part) for part in frame["parts_hex"]]
