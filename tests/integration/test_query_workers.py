"""Several workers on one port, and the end of the service, on real processes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import query_service, servers
from tests.query_service import HIT_RATE, Service, read_from

ASKED = {"server_ip": ["10.0.0.1"], "body": {"token_ids": [1, 2], "block_size": 1}}


def workers(service: Service) -> list[int]:
    """Process ids of the workers started so far, from the log."""
    return [int(pid) for pid in re.findall(r'"pid": ?(\d+)[^\n]*query worker started', service.log)] or [
        json.loads(line)["pid"] for line in service.log.splitlines() if "query worker started" in line
    ]


def wait_for(condition: Callable[[], object], service: Service) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, service.log
        time.sleep(0.05)


def refuses(service: Service) -> bool:
    """Whether nobody listens any more; workers are told one by one."""
    try:
        service.connect().close()
    except ConnectionError:
        return True
    return False


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def counted(service: Service) -> float:
    _, _, text = service.get("/metrics")
    pattern = r'cache_indexer_http_requests_total\{route="/kv-cache/hit-rate",status="200"\} ([0-9.e+]+)'
    found = re.search(pattern, text)
    return float(found[1]) if found else 0.0


def test_a_dead_worker_is_replaced_and_metrics_are_one(redis_server: servers.Server, tmp_path: Path) -> None:
    with query_service.start(tmp_path, redis_server.url, http_={"workers": 2}) as service:
        wait_for(lambda: service.log.count("query service listens") == 2, service)
        first = workers(service)
        assert len(first) == 2
        for _ in range(40):
            assert service.post(HIT_RATE, ASKED)[0] == 200
        assert {counted(service) for _ in range(10)} == {40.0}
        os.kill(first[0], signal.SIGKILL)
        wait_for(lambda: service.log.count("query service listens") == 3, service)
        assert "query worker died" in service.log
        for _ in range(10):
            assert service.post(HIT_RATE, ASKED)[0] == 200
        assert {counted(service) for _ in range(10)} == {50.0}
        assert service.terminate() == 0
        assert not any(alive(pid) for pid in workers(service))


def test_workers_end_when_their_parent_is_killed(redis_server: servers.Server, tmp_path: Path) -> None:
    with query_service.start(tmp_path, redis_server.url, http_={"workers": 2}) as service:
        wait_for(lambda: service.log.count("query service listens") == 2, service)
        service.process.kill()
        service.process.wait()
        wait_for(lambda: not any(alive(pid) for pid in workers(service)), service)


@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_lets_a_running_request_end(redis_server: servers.Server, tmp_path: Path, count: int) -> None:
    body = json.dumps(ASKED).encode()
    with query_service.start(tmp_path, redis_server.url, http_={"workers": count}) as service:
        with service.connect() as running, service.connect() as idle:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_from(idle, "GET")[0] == 200
            running.sendall(
                f"POST {HIT_RATE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body[:9]
            )
            time.sleep(0.2)
            service.process.send_signal(signal.SIGTERM)
            assert idle.recv(1) == b"", "an idle connection is closed at once"
            wait_for(lambda: refuses(service), service)
            assert service.process.poll() is None
            running.sendall(body[9:])
            code, headers, _ = read_from(running)
            assert code == 200
            assert headers["connection"] == "close"
            assert running.recv(1) == b""
        assert service.process.wait(10) == 0


@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_answers_what_the_kernel_took_already(
    redis_server: servers.Server, tmp_path: Path, count: int
) -> None:
    """Requests that wait unread, on a used connection or behind the listening socket, are not reset."""
    body = json.dumps(ASKED).encode()
    request = f"POST {HIT_RATE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(
            query_service.start(tmp_path, redis_server.url, http_={"workers": count})
        )
        wait_for(lambda: service.log.count("query service listens") == count, service)
        used = [stack.enter_context(service.connect()) for _ in range(10)]
        for sock in used:
            sock.sendall(request)
            assert read_from(sock)[0] == 200
        stopped = workers(service) or [service.process.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        waiting = [stack.enter_context(service.connect()) for _ in range(50)]
        for sock in (*used, *waiting):
            sock.sendall(request)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # the parent of workers has told them
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        assert {read_from(sock)[0] for sock in (*used, *waiting)} == {200}
        assert service.process.wait(15) == 0


def test_sigterm_cuts_a_request_that_outlasts_the_shutdown_timeout(
    redis_server: servers.Server, tmp_path: Path
) -> None:
    with query_service.start(tmp_path, redis_server.url, http_={"shutdownTimeout": "500ms"}) as service:
        with service.connect() as running:
            running.sendall(f"POST {HIT_RATE} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n".encode())
            time.sleep(0.2)
            assert service.terminate() == 0
        assert "were cut" in service.log


@pytest.mark.parametrize("count", [1, 2])
def test_what_no_worker_could_start_with_is_one_line_and_status_1(tmp_path: Path, count: int) -> None:
    config = {"http": {"addr": "127.0.0.1:0", "workers": count}, "redis": {"url": "embedded"}}
    service = Service(tmp_path, config, 0)
    assert service.process.wait(30) == 1
    assert re.fullmatch(r"error: redis\.url: embedded [^\n]+\n", service.log)


def test_a_taken_port_is_one_line_and_status_1(redis_server: servers.Server, tmp_path: Path) -> None:
    with query_service.start(tmp_path, redis_server.url) as service:
        command = list(service.process.args)  # type: ignore[arg-type]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 1
        assert re.fullmatch(r"error: cannot listen on http\.addr = \S+: [^\n]+\n", second.stderr)
