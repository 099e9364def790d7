"""Logs: their two forms, what goes into them, and what never does."""

import io
import json
import logging

import pytest
import structlog

from indexer import clock, log
from indexer.config import Redis


@pytest.fixture
def stream():
    """A stream for the logs of one test; afterwards logging is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_is_one_object_a_line_with_time_level_and_logger(stream, monkeypatch):
    monkeypatch.setattr(clock, "wall", lambda: 1_000_000_000.1234)
    log.configure("info", stream)
    log.get("a.b").info("stream opened", ip="10.0.0.7", rank=0, ranks=(0, 1), told=None)
    assert lines(stream) == [
        {
            "event": "stream opened",
            "ip": "10.0.0.7",
            "rank": 0,
            "ranks": [0, 1],
            "told": None,
            "logger": "a.b",
            "level": "info",
            "timestamp": "2001-09-09T01:46:40.123Z",
        }
    ]


def test_a_terminal_gets_text(stream, monkeypatch):
    monkeypatch.setattr(stream, "isatty", lambda: True)
    log.configure("info", stream)
    log.get("a").warning("lost", ip="10.0.0.7")
    text = stream.getvalue()
    assert "lost" in text
    assert "10.0.0.7" in text
    assert not text.startswith("{")


@pytest.mark.parametrize(
    ("level", "kept"),
    [("debug", "diwe"), ("info", "iwe"), ("warn", "we"), ("warning", "we"), ("error", "e")],
)
def test_the_level_holds_for_us_and_for_libraries(stream, level, kept):
    log.configure(level, stream)
    for logger in (log.get("ours"), logging.getLogger("theirs")):
        for method in ("debug", "info", "warning", "error"):
            getattr(logger, method)(method)
    assert "".join(line["event"][0] for line in lines(stream)) == kept * 2


def test_what_libraries_log_comes_out_the_same_way(stream):
    log.configure("info", stream)
    logging.getLogger("lib").warning("%s of %d", "one", 2, extra={"peer": "10.0.0.7"})
    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["level"], line["peer"]) == (
        "one of 2",
        "lib",
        "warning",
        "10.0.0.7",
    )
    assert line["timestamp"].endswith("Z")


def test_configured_twice_writes_once(stream):
    log.configure("info", io.StringIO())
    log.configure("info", stream)
    log.get("a").info("once")
    assert len(lines(stream)) == 1


@pytest.mark.parametrize("text", [False, True])
def test_no_secret_gets_out(stream, text):
    log.configure("info", stream, text=text)
    ours, theirs = log.get("ours"), logging.getLogger("theirs")
    url = "redis://user:hun/t@er2@h:6379/0"
    ours.info(f"connecting to {url}", url=url, nested={"urls": [url]}, password="t@er2")
    ours.info("configured", redis=Redis(url=url, password="t@er2"), error=ValueError(f"no answer of {url}"))
    theirs.warning("gave up on %s", url)
    for logger in (ours, theirs):
        try:
            raise ConnectionError(f"cannot reach {url}")
        except ConnectionError:
            logger.exception("failed")
    written = stream.getvalue()
    assert "t@er2" not in written
    assert "hun" not in written
    assert "redis://***@h:6379/0" in written
    assert written.count("ConnectionError") >= 2


def test_what_is_no_plain_data_is_written_by_its_repr(stream):
    log.configure("info", stream)
    log.get("a").info("x", raw=b"\xff", odd={1: {2}})
    (line,) = lines(stream)
    assert (line["raw"], line["odd"]) == ("b'\\xff'", {"1": "{2}"})
