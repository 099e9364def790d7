"""`who` and `stats` against a real index."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from indexer.blocks import WIDTH, unpack
from indexer.cli import stats, verify, who
from tests import servers
from tests.index_fill import chain, fill

SIZE = 4
PROMPT = list(range(300, 340))
BLOCKS = chain(PROMPT, SIZE)

Run = Callable[..., Any]


@pytest.fixture
def run(redis_server: servers.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command over an index with two engines and a Mooncake host."""
    streams = {
        ("10.0.0.1", 0): {"l1": BLOCKS[: 3 * WIDTH]},
        ("10.0.0.1", 1): {"l1": BLOCKS},
        ("fd00::2", 0): {"l2": BLOCKS[:WIDTH]},
    }
    l3 = {"10.0.0.1": BLOCKS[:WIDTH], "*": BLOCKS}
    asyncio.run(fill(redis_server.url, streams, l3, states={("fd00::2", 0): "suspect"}))
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"redis": {"url": redis_server.url}, "discovery": {"source": "static"}}))
    monkeypatch.setenv("CACHE_INDEXER_CONFIG", str(config))
    app = typer.Typer()
    who.register(app)
    stats.register(app)
    verify.register(app)

    def invoke(*args: str, stdin: str | None = None) -> Any:
        return CliRunner().invoke(app, list(args), input=stdin)

    return invoke


def test_who_holds_a_block(run: Run) -> None:
    block = unpack(BLOCKS)[0]
    unsigned = int(block, 16)
    assert unsigned < 1 << 63
    signed, same = "-1", "f" * 16
    assert json.loads(run("who", signed, "--json").stdout)["block"] == same
    for name in (block, block.upper(), str(unsigned)):
        result = run("who", name, "--json")
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert told["block"] == block
        holders = [(h["tier"], h["instance"], h["rank"]) for h in told["pools"][0]["holders"]]
        assert holders == [
            ("l1", "10.0.0.1", 0),
            ("l1", "10.0.0.1", 1),
            ("l2", "fd00::2", 0),
            ("l3", "*", None),
            ("l3", "10.0.0.1", None),
        ]
    table = run("who", block).stdout
    assert "fd00::2" in table
    assert "10.0.0.1" in table


def test_who_says_when_nobody_does(run: Run) -> None:
    result = run("who", "0" * 16)
    assert (result.exit_code, result.stdout) == (0, "nobody holds it\n")


@pytest.mark.parametrize("as_object", [False, True])
def test_who_shows_prefixes(run: Run, tmp_path: Path, as_object: bool) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"token_ids": PROMPT, "block_size": SIZE} if as_object else PROMPT))
    args = ["who", "--tokens", str(file), *([] if as_object else ["--block-size", str(SIZE)])]
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    blocks = {i["ip"]: [i[tier]["blocks"] for tier in ("l1", "l2", "l3")] for i in told["instances"]}
    assert blocks == {"10.0.0.1": [10, 0, 1], "fd00::2": [0, 1, 0]}
    table = run(*args).stdout
    assert "10 (100%)" in table
    assert "Mooncake memory on any host: 10 (100%)" in table
    assert "fd00::2:0 is suspect" in table


def test_who_reads_stdin(run: Run) -> None:
    result = run("who", "--tokens", "-", "--block-size", "4", "--json", stdin=json.dumps(PROMPT))
    assert json.loads(result.stdout)["blocks"] == 10


@pytest.mark.parametrize(
    ("args", "stdin", "named"),
    [
        (["who"], None, "BLOCK"),
        (["who", "xyz"], None, "'xyz'"),
        (["who", str(1 << 64)], None, "2^64-1"),
        (["who", "9" * 5000], None, "2^64-1"),
        (["who", "1_000"], None, "'1_000'"),
        (["who", "\u0661"], None, "hex digits"),
        (["who", "0" * 16, "--tokens", "-"], "[]", "either"),
        (["who", "--tokens", "/nonexistent"], None, "/nonexistent"),
        (["who", "--tokens", "-"], "[1]", "block_size"),
        (["who", "--tokens", "-", "--block-size", "4"], "[1.5]", "token_ids"),
        (["who", "--tokens", "-"], "{", "JSON"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(run: Run, args: list[str], stdin: str | None, named: str) -> None:
    result = run(*args, stdin=stdin)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_stats_show_the_index(run: Run) -> None:
    (pool,) = json.loads(run("stats", "--json").stdout)
    assert pool["pool"] == "default"
    assert pool["instances"] == ["10.0.0.1", "fd00::2"]
    tiers = pool["stats"]["tiers"]
    assert tiers["l1"]["holders"] == {"l1:10.0.0.1:0": 3, "l1:10.0.0.1:1": 10}
    assert tiers["l1"]["blocks"] == 10
    assert [stream["state"] for stream in pool["stats"]["streams"]] == ["live", "live", "suspect"]
    assert pool["memory"]["used"] > 0
    table = run("stats").stdout
    for text in (
        "pool default",
        "instances 2",
        "term 1",
        "standbys 0 (0 warm)",
        "block size",
        "suspect",
        "fd00::2",
        "of memory",
    ):
        assert text in table


@pytest.mark.parametrize("command", [["stats"], ["who", "0" * 16], ["verify"]])
def test_an_option_names_another_redis(
    run: Run, redis_server: servers.Server, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For reading, too, whatever the configuration has."""
    expected = run(*command, "--json")
    monkeypatch.setenv("CACHE_INDEXER_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("CACHE_INDEXER_REDIS_READ_URL", "redis://127.0.0.1:1/0")
    found = run(*command, "--json", "--redis-url", redis_server.url)
    assert (found.exit_code, expected.exit_code) == (0, 0)
    assert found.stdout.splitlines()[:4] == expected.stdout.splitlines()[:4]


@pytest.mark.parametrize("command", [["stats"], ["verify"], ["who", "0" * 16], ["who", "--tokens", "-"]])
def test_redis_away_is_one_line_and_status_1(
    run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_INDEXER_REDIS_URL", "redis://127.0.0.1:1/0")
    result = run(*command, stdin='{"token_ids": [1], "block_size": 1}')
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "--redis-url" in result.stderr
    assert result.stderr.count("\n") == 1
