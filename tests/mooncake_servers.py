"""Real Mooncake masters and clients as child processes, for tests and benchmarks.

`make mooncake` installs each version into a venv of its own below `.tools/mooncake/`; MOONCAKE_HOME names
another directory. A pod is a client process with an address of its own (all of 127/8 is loopback).
"""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

VERSIONS = ("0.3.7.post2", "0.3.9", "0.3.13.post1")
HOME = Path(os.environ.get("MOONCAKE_HOME") or Path(__file__).parent.parent / ".tools" / "mooncake")
MIB = 1 << 20


def installed(version: str) -> bool:
    """Whether this version can be run here."""
    return (HOME / version / ".installed").exists()


def missing(version: str) -> str:
    """Why a version cannot be run here, and what to do about it."""
    return f"Mooncake {version} is not below {HOME}: make mooncake"


def need(version: str) -> str:
    """`version`, or skip the test (fail it, where TEST_REQUIRE_SERVERS names mooncake)."""
    if not installed(version):
        if "mooncake" in os.environ.get("TEST_REQUIRE_SERVERS", "").split(","):
            pytest.fail(missing(version))
        pytest.skip(missing(version))
    return version


class Master:
    """A mooncake_master of one version; it listens on loopback ports of its own."""

    def __init__(self, version: str, directory: Path, **flags: str) -> None:
        self.version, self._directory = version, directory
        self.rpc_port, self.http_port = free_port(), free_port()
        self._flags = flags
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def http(self) -> str:
        """Its admin API, as discovery would name it."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def rpc(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.rpc_port}"

    def start(self) -> "Master":
        """Start it (again) and wait until it answers."""
        packages = next((HOME / self.version).glob("lib/python3*/site-packages/mooncake"))
        flags = {
            "port": str(self.rpc_port),
            "metrics_port": str(self.http_port),
            "logtostderr": "true",
            "enable_http_metadata_server": "false",
        } | self._flags
        with (self._directory / f"master-{self.http_port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [packages / "mooncake_master", *(f"--{key}={value}" for key, value in flags.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                self.get("/get_all_keys")
            except OSError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"mooncake_master {self.version} did not start: {error}") from error
                time.sleep(0.05)
            else:
                assert self.process.poll() is None, "another program answers on the master's port"
                return self

    def get(self, target: str) -> str:
        """The body of a GET; raises OSError (HTTPError for another status)."""
        with urllib.request.urlopen(self.http + target, timeout=5) as response:
            return str(response.read().decode())

    def keys(self) -> set[str]:
        """What it lists."""
        return set(self.get("/get_all_keys").splitlines())

    def segments(self) -> list[str]:
        """What it has mounted."""
        return self.get("/get_all_segments").splitlines()

    def cpu_seconds(self) -> float:
        """CPU time that it has used so far."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def pause(self) -> None:
        """SIGSTOP: connections are accepted, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; everything that it knew is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Pod:
    """A client with memory of its own at `ip`: what an engine's worker is to Mooncake."""

    def __init__(self, master: Master, ip: str, directory: Path, size: int = 64 * MIB) -> None:
        self.segment = f"{ip}:{free_port()}"
        self.ip = ip
        reading, writing = os.pipe()
        with (directory / f"pod-{self.segment}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    HOME / master.version / "bin" / "python",
                    Path(__file__).with_name("mooncake_client.py"),
                    str(writing),
                    self.segment,
                    master.rpc,
                    str(size),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                env=os.environ | {"PYTHONPATH": "", "MC_LOG_LEVEL": "ERROR"},
            )
        os.close(writing)
        self._answers = os.fdopen(reading, "r")
        code = self._answer()
        if code != 0:
            raise RuntimeError(f"the Mooncake client could not be set up: {code}")

    def put(self, keys: Iterable[str], *, size: int = 1024, replicas: int = 1, at: str = "") -> list[int]:
        """Store objects; `at` is the segment to prefer (its own when empty). Return codes, 0 is good."""
        result: list[int] = self._do(
            do="put", keys=list(keys), size=size, replicas=replicas, at=at or self.segment
        )
        return result

    def put_batch(self, keys: Iterable[str], *, size: int) -> None:
        """Store many small objects fast, wherever the master likes."""
        assert all(code == 0 for code in self._do(do="put_batch", keys=list(keys), size=size))

    def remove(self, keys: Iterable[str]) -> list[int]:
        """Remove objects; -706 for one that somebody's read has leased."""
        result: list[int] = self._do(do="remove", keys=list(keys))
        return result

    def close(self) -> None:
        """Leave gracefully."""
        if self.process.poll() is None:
            self._do(do="close")
        self.kill()

    def kill(self) -> None:
        """SIGKILL: the master notices only when the client's time to live is over."""
        self.process.kill()
        self.process.wait()
        self._answers.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _do(self, **command: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the Mooncake client at {self.segment} is gone")
        return json.loads(line)
