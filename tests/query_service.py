"""The real query service as a child process, for tests: its own port, its own configuration file.

with start(tmp_path, redis_url) as service:
    status, headers, body = service.post("/kv-cache/hit-rate", {...})
"""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.ports import free_port

HIT_RATE = "/kv-cache/hit-rate"
READY_SECONDS = 60.0
_PROGRAM = (
    "import sys, typer; from indexer.cli import serve; app = typer.Typer(); serve.register(app); "
    "app.callback()(lambda: None); app(sys.argv[1:])"
)

Answer = tuple[int, Mapping[str, str], Any]


class Service:
    """A running query service. In answers, header names are lower-case and JSON bodies are parsed."""

    def __init__(self, directory: Path, config: Mapping[str, Any], port: int) -> None:
        self.port = port
        self.log_file = directory / f"query-{port}.log"
        file = directory / f"config-{port}.yaml"
        file.write_text(yaml.safe_dump(dict(config)))
        with self.log_file.open("wb") as output:
            command = [sys.executable, "-c", _PROGRAM, "serve", "--config", str(file)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self.log_file.read_text(errors="replace")

    def wait_until_it_answers(self) -> None:
        """Until /healthz answers; raises with its log when it ends or does not answer."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/healthz")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"the query service does not answer:\n{self.log}")

    def connect(self) -> socket.socket:
        """A raw connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request on a connection of its own; `body` is bytes, or JSON to be."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers)
            return read(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """GET."""
        return self.request("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        """POST."""
        return self.request("POST", path, body)

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def __enter__(self) -> "Service":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def read(response: http.client.HTTPResponse) -> Answer:
    """Status, headers and body of a response."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    data = response.read()
    if data and headers.get("content-type") == "application/json":
        return response.status, headers, json.loads(data)
    return response.status, headers, data.decode()


def read_from(sock: socket.socket, method: str = "POST") -> Answer:
    """The next response on a raw connection. Raises RemoteDisconnected when it is closed instead."""
    response = http.client.HTTPResponse(sock, method=method)
    response.begin()
    return read(response)


def start(
    directory: Path,
    redis_url: str,
    *,
    http_: Mapping[str, Any] | None = None,
    redis: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Service:
    """Start it and wait until it answers. `http_` and `redis` add to their sections; None drops one."""
    port = free_port()
    config = {
        "http": {"addr": f"127.0.0.1:{port}", **(http_ or {})},
        "redis": {"url": redis_url, **(redis or {})},
        "discovery": {"source": "static"},
        **sections,
    }
    config = {name: section for name, section in config.items() if section is not None}
    service = Service(directory, config, port)
    try:
        service.wait_until_it_answers()
    except BaseException:
        service.__exit__(None, None, None)
        raise
    return service
