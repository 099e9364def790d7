"""Fixtures that every test may use: real servers, one of each kind for a test process."""

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from tests import servers

# No deadline for single examples: on a busy machine any of them may be held up.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

REQUIRED = {name for name in os.environ.get("TEST_REQUIRE_SERVERS", "").split(",") if name}
"""Kinds that must be here: their absence is a failure, no skip. Set where everything is installed."""


@pytest.fixture(scope="session")
def _shared_servers() -> Iterator[Callable[[str], servers.Server]]:
    running: dict[str, servers.Server] = {}

    def get(flavour: str) -> servers.Server:
        if servers.binary(flavour) is None:
            if flavour in REQUIRED:
                pytest.fail(servers.missing(flavour))
            pytest.skip(servers.missing(flavour))
        if flavour not in running:
            running[flavour] = servers.start(flavour)
        running[flavour].wipe()
        return running[flavour]

    yield get
    for server in running.values():
        server.close()


@pytest.fixture
def redis_server(_shared_servers: Callable[[str], servers.Server]) -> servers.Server:
    """An empty Valkey 9 (the embedded one), shared by the tests of one process, wiped before each.

    A test that changes its settings or kills it takes `start_redis` instead.
    """
    return _shared_servers("valkey")


@pytest.fixture(params=list(servers.FLAVOURS))
def any_redis(
    request: pytest.FixtureRequest, _shared_servers: Callable[[str], servers.Server]
) -> servers.Server:
    """Like `redis_server`, once for each kind of server that the index must run on."""
    return _shared_servers(request.param)


@pytest.fixture
def start_redis() -> Iterator[Callable[..., servers.Server]]:
    """`servers.start` whose servers end with the test."""
    started: list[servers.Server] = []

    def start(*args: object, **kwargs: object) -> servers.Server:
        started.append(servers.start(*args, **kwargs))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for server in started:
        server.close()
