"""A Redis that is away is told of once, and so is its return."""

import pytest
from structlog.testing import capture_logs

from indexer import clock
from indexer.api.outage import QUIET_SECONDS, Outage
from indexer.errors import IndexUnavailableError


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


def test_an_outage_is_logged_at_its_begin_and_its_end(now: list[float]) -> None:
    outage = Outage()
    with capture_logs() as logs:
        outage.answered()
        for _ in range(50):
            outage.failed(IndexUnavailableError("Redis did not answer in time"))
            now[0] += 0.1
        now[0] += QUIET_SECONDS
        for _ in range(50):
            outage.answered()
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [
        ("warning", "queries fail"),
        ("info", "queries are answered again"),
    ]
    assert logs[0]["error"] == "Redis did not answer in time"
    assert (logs[1]["failed"], logs[1]["seconds"]) == (50, 4.9)


def test_answers_between_time_outs_are_no_end(now: list[float]) -> None:
    outage = Outage()
    with capture_logs() as logs:
        for _ in range(50):
            outage.failed(IndexUnavailableError("late"))
            now[0] += QUIET_SECONDS / 2
            outage.answered()
    assert len(logs) == 1
