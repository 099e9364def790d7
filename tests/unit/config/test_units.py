"""Durations and listen addresses."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from indexer.config import Duration, parse_addr
from indexer.config.units import LONGEST


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("500ms", 0.5),
        ("1m30s", 90),
        ("1h", 3600),
        ("1.5h", 5400),
        ("2m0s", 120),
        (".5s", 0.5),
        ("1.s", 1),
        ("5ms", 0.005),
        ("5m", 300),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("1h2m3s4ms", 3723.004),
    ],
)
def test_durations_as_the_replaced_system_reads_them(text, seconds):
    assert Duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (10, 'bare number; write a duration with its unit, such as "10s"'),
        (2.5, 'such as "2.5s"'),
        ("10", 'such as "10s"'),
        ("", "not a duration"),
        ("s", "not a duration"),
        ("10 s", "not a duration"),
        (" 10s", "not a duration"),
        ("10s\n", "not a duration"),
        ("-10s", "not a duration"),
        ("1d", "not a duration"),
        ("10S", "not a duration"),
        ("1m30", "not a duration"),
        ("1..5s", "not a duration"),
        ("١٠s", "not a duration"),
        ("0s", "out of range"),
        ("0.0000001ns", None),
        ("721h", "at most 720h"),
        ("9" * 400 + "h", "out of range"),
        (True, "not a duration"),
        (None, "not a duration"),
        ([1], "not a duration"),
    ],
)
def test_what_is_no_duration(text, says):
    if says is None:
        assert Duration.parse(text) > 0
        return
    with pytest.raises(ValueError, match=r"^(is|has) ") as caught:
        Duration.parse(text)
    assert says in str(caught.value)


@given(st.integers(min_value=1, max_value=int(LONGEST * 1e6)))
@example(59_999_999)
@example(1)
def test_a_duration_reads_back_as_it_is_written(microseconds):
    duration = Duration(microseconds / 1e6)
    assert round(Duration.parse(str(duration)) * 1e6) == microseconds


@given(st.text(alphabet="0123456789.hmsuµn -", max_size=12))
def test_any_text_is_a_duration_in_range_or_refused(text):
    try:
        duration = Duration.parse(text)
    except ValueError:
        return
    assert 0 < duration <= LONGEST


@pytest.mark.parametrize(
    ("addr", "parts"),
    [
        (":28080", (None, 28080)),
        ("127.0.0.1:28080", ("127.0.0.1", 28080)),
        ("[::1]:28080", ("::1", 28080)),
        ("[::]:0", ("::", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_listen_addresses(addr, parts):
    assert parse_addr(addr) == parts


@pytest.mark.parametrize(
    "addr", ["", "28080", ":", ":x", ":65536", "::1:80", "a b:80", "http://h:80", ":80\n"]
)
def test_what_is_no_listen_address(addr):
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:28080"):
        parse_addr(addr)
