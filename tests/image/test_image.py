"""The Dockerfile, and the image built of it, confined as the chart confines it."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.servers import Server

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "localhost/cache-indexer:dev"
PODMAN = ["podman", "--runtime", shutil.which("runc") or "runc"]


def test_dockerfile_has_no_findings() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def service(redis_server: Server, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A query service in a container: the container's name, and its address."""
    if not all(map(shutil.which, ("podman", "runc"))):
        pytest.skip("podman and runc are not here")
    if subprocess.run([*PODMAN, "image", "exists", IMAGE]).returncode != 0:
        pytest.skip(f"there is no image {IMAGE}: run `make image`")
    name, port = f"ci-{free_port()}", free_port()
    config = tmp_path / "config.yaml"
    settings = {"http": {"addr": f"127.0.0.1:{port}"}, "redis": {"url": redis_server.url}}
    config.write_text(json.dumps(settings))
    config.chmod(0o644)
    command = [*PODMAN, "run", "--rm", "--name", name, "--network", "host", "--no-healthcheck"]
    command += ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
    command += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    command += ["--volume", f"{config}:/etc/cache-indexer/config.yaml:ro", IMAGE, "serve"]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not _ready(url):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        yield name, url
        subprocess.run([*PODMAN, "kill", "--signal", "TERM", name], check=True, capture_output=True)
        assert process.wait(30) == 0, "SIGTERM is an orderly end"
    finally:
        if process.poll() is None:
            subprocess.run([*PODMAN, "rm", "--force", name], capture_output=True)
            process.wait(30)


def _ready(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        return bool(urllib.request.urlopen(f"{url}/readyz", timeout=5).status == 200)
    return False


@pytest.mark.slow
def test_answers_without_root_rights_or_a_writable_disk(service: tuple[str, str]) -> None:
    name, url = service
    question = {"server_ip": ["10.0.0.1"], "body": {"token_ids": [1, 2], "block_size": 1}}
    request = urllib.request.Request(f"{url}/kv-cache/hit-rate", json.dumps(question).encode())
    with urllib.request.urlopen(request, timeout=5) as response:
        answer = json.load(response)
    assert answer["server_score_list"] == [{"server_ip": "10.0.0.1", "l1_hit_ratio": 0, "l3_hit_ratio": 0}]

    def inside(script: str) -> str:
        done = subprocess.run([*PODMAN, "exec", name, "sh", "-c", script], capture_output=True, text=True)
        return done.stdout.strip()

    assert inside("id -u") == "10001"
    assert inside("touch /anywhere && echo written") == ""
    assert inside("sed -n 's/^CapBnd:\\s*//p' /proc/1/status") == "0" * 16
    assert inside("command -v gcc cc make pip") == ""
