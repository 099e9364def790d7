"""The command line as people and service managers use it: arguments, exit status, signals."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from collector.capture import load
from collector.cli import WRITE_SIDE
from collector.replayer import Replayer
from indexer.cli import COMMANDS
from tests.ports import free_port

DATA = Path(__file__).parents[1] / "data"
PROGRAM = [sys.executable, "-c", "from collector.cli import main; main()"]
LORA = "capture-0.18.0-lora.jsonl.gz"
PATIENCE = 60


def environment(**extra: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("CACHE_INDEXER_")}
    return clean | {"CACHE_INDEXER_COLLECTOR_ADDR": "127.0.0.1:0", **extra}


def run(*args: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *args], capture_output=True, text=True, timeout=PATIENCE, env=environment(**extra)
    )


def assert_refused(result: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """One clear line on stderr that names what is wrong, and no traceback."""
    assert result.returncode == status, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in line


def test_version():
    result = run("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"cache-indexer \d+\.\d+\.\d+\n", result.stdout)


@pytest.mark.parametrize(
    ("redirect", "status", "output"),
    [
        pytest.param(
            ">/dev/full",
            1,
            r"error: \[Errno 28\] [^\n]+\n",
            marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux"),
        ),
        (">&-", 0, ""),
        ("<&-", 0, r'\{"block_hashes":.*\n'),
        ("<&- >&- 2>&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(redirect, status, output):
    program = shlex.join([*PROGRAM, "hash", "1", "2", "--block-size", "2"])
    result = subprocess.run(
        ["sh", "-c", f"exec {program} {redirect}"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert result.returncode == status
    assert re.fullmatch(output, result.stdout + result.stderr)


def test_help_names_every_command_and_loads_none():
    code = (
        "import sys\nfrom collector.cli import main\nsys.argv = ['cache-indexer', '--help']\n"
        "try:\n    main()\nfinally:\n"
        "    print([m for m in ('redis', 'aiohttp', 'numpy', 'zmq') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    for name in (*COMMANDS, *WRITE_SIDE):
        assert f" {name} " in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", [*COMMANDS, *WRITE_SIDE])
def test_every_command_has_help(name):
    result = run(name, "--help", COLUMNS="160")
    assert result.returncode == 0, result.stderr
    assert f"cache-indexer {name}" in result.stdout
    assert "--config" not in result.stdout or "/etc/cache-indexer/config.yaml" in result.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nope"], ["nope", "(see cache-indexer --help)"]),
        (["demo", "--nope"], ["--nope", "(see cache-indexer demo --help)"]),
        (["run", "--config", "/nowhere.yaml"], ["/nowhere.yaml"]),
        (["run", "--engine", "x"], ["--engine", "'x'"]),
        (["run", "--engine", "x=tcp://a:1", "--http-addr", "nonsense"], ["http.addr", "nonsense"]),
        (
            ["run", "--redis-url", "redis://h", "--data-dir", "/tmp/x", "--engine", "x=tcp://a:1"],
            ["--data-dir"],
        ),
        (["serve", "--redis-url", "nonsense"], ["redis.url", "nonsense"]),
        (["serve", "--http-addr", "nonsense"], ["http.addr", "nonsense"]),
        (["collect", "--redis-url", "embedded", "--engine", "x=tcp://a:1"], ["redis.url", "embedded"]),
    ],
)
def test_wrong_usage_and_configuration_end_with_status_2(args, words):
    assert_refused(run(*args), 2, *words)


def test_file_that_is_no_capture_ends_with_status_1(tmp_path):
    assert_refused(run("replay", str(tmp_path / "none")), 1, str(tmp_path / "none"))


def test_replay_ports_that_collide_are_refused():
    """With two ranks on 5557 and 5558, a replay socket on 5558 would collide."""
    args = ("--port", "5557", "--replay-port", "5558")
    assert_refused(run("replay", str(DATA / "capture-0.18.0-dp2.jsonl.gz"), *args), 1, "--replay-port 5558")


def test_replay_plays_to_the_end():
    result = run("replay", str(DATA / LORA), "--port", str(free_port()), "--no-wait", "--speed", "0")
    assert result.returncode == 0, result.stderr
    assert "4 batches" in result.stderr


def test_demo_is_right_about_all_250_requests():
    result = run("demo")
    assert result.returncode == 0, result.stderr
    assert "250 of 250 answers equal what the engine itself reused" in result.stdout
    assert "curl -s http://127.0.0.1:" in result.stdout
    assert "redis-cli -p" in result.stdout


class Running:
    """`cache-indexer run` with an engine, until the block ends."""

    def __init__(self, engine: Replayer, *args: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        (rank,) = engine.target("").ranks
        options = ("--engine", f"10.0.0.7={rank.events}", "--http-addr", self.url.removeprefix("http://"))
        self.process = subprocess.Popen(
            [*PROGRAM, "run", *options, *args],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(CACHE_INDEXER_REDIS_TIMEOUT="5s", CACHE_INDEXER_COLLECTOR_LEASE_DURATION="15s"),
        )

    def blocks(self) -> int:
        """How many blocks the index has of the first request."""
        request = load(DATA / LORA).steps[0].requests[0]
        body = {
            "token_ids": request.prompt,
            "block_size": 32,
            "lora_name": request.lora_name,
            "candidates": ["10.0.0.7"],
        }
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/v1/lookup", json.dumps(body).encode()), timeout=PATIENCE
        ) as answer:
            return json.load(answer)["instances"][0]["l1"]["blocks"]

    def until(self, expected: int) -> None:
        """Wait until the answer is as expected."""
        deadline = time.monotonic() + PATIENCE
        while self.blocks() != expected:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def terminate(self) -> str:
        """SIGTERM; the log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, log
        return log


@pytest.fixture
async def engine():
    async with Replayer(load(DATA / LORA)) as replayer:
        yield replayer


async def test_run_needs_nothing_but_an_engine_and_ends_orderly(engine):
    """No Redis is named, so there is an embedded one; SIGTERM ends all of it with status 0."""
    running = Running(engine)
    try:
        async with asyncio.timeout(PATIENCE):
            await engine.subscribed()
        await engine.play()
        await asyncio.to_thread(running.until, 3)
        log = await asyncio.to_thread(running.terminate)
    finally:
        running.process.kill()
    assert '"addr": "127.0.0.1:0", "event": "collector listens"' in log
    (url,) = re.findall(r"redis://127\.0\.0\.1:(\d+)/0", log)[:1]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url))) != 0, "the embedded Valkey is still there"


async def test_run_uses_the_redis_that_it_is_given(engine, redis_server):
    running = Running(engine, "--redis-url", redis_server.url)
    try:
        async with asyncio.timeout(PATIENCE):
            await engine.subscribed()
        await engine.play()
        await asyncio.to_thread(running.until, 3)
        await asyncio.to_thread(running.terminate)
    finally:
        running.process.kill()
    with redis_server.client() as client:
        assert client.exists("kvi:{default}:holder:l1:10.0.0.7:0")


def test_run_says_which_address_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addr = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("run", "--engine", "x=tcp://127.0.0.1:1", "--http-addr", addr)
    assert_refused(result, 1, "http.addr", addr)
