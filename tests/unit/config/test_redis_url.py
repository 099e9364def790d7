"""The forms of redis.url, and that none of their secrets gets out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.config import Redis, RedisTarget, parse_redis_url, redacted
from indexer.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://h:7000/3", RedisTarget("tcp", (("h", 7000),), db=3)),
        ("redis://h", RedisTarget("tcp", (("h", 6379),))),
        ("redis://[::1]:7000/", RedisTarget("tcp", (("::1", 7000),))),
        (
            "rediss://u:p%40ss@h/1",
            RedisTarget("tcp", (("h", 6379),), db=1, tls=True, username="u", password="p@ss"),
        ),
        ("redis://:a/b@c@h", RedisTarget("tcp", (("h", 6379),), password="a/b@c")),
        ("unix:///run/r.sock", RedisTarget("unix", path="/run/r.sock")),
        (
            "unix://u:p@/run/r.sock:2",
            RedisTarget("unix", path="/run/r.sock", db=2, username="u", password="p"),
        ),
        (
            "redis+sentinel://a:1,b/mymaster/2",
            RedisTarget("sentinel", (("a", 1), ("b", 26379)), service="mymaster", db=2),
        ),
        (
            "rediss+cluster://:p@a,[fd00::1]:7001",
            RedisTarget("cluster", (("a", 6379), ("fd00::1", 7001)), tls=True, password="p"),
        ),
        ("embedded", RedisTarget("embedded")),
    ],
)
def test_forms(url, target):
    assert parse_redis_url(url) == target


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "no Redis URL"),
        ("h:6379", "no Redis URL"),
        ("http://h", "no Redis URL"),
        ("redis:///0", "no host and port"),
        ("redis://h:0", "no host and port"),
        ("redis://h:65536", "no host and port"),
        ("redis://a b", "no host and port"),
        ("redis://a,b", "redis+sentinel:// or redis+cluster://"),
        ("redis://h/x", "no database number"),
        ("redis://h?db=1", "options after the address"),
        ("redis+sentinel://a,b", "names no service"),
        ("redis+sentinel://a,/s", "no host and port"),
        ("redis+cluster://a/1", "only database 0"),
        ("unix://run/r.sock", "absolute path"),
    ],
)
def test_what_is_no_redis_url(url, says):
    with pytest.raises(ValueError, match=r"^(is|has|names|needs|ends)") as caught:
        parse_redis_url(url)
    assert says in str(caught.value)


@given(password=st.text(st.characters(codec="utf-8", exclude_characters="*", min_codepoint=33), min_size=4))
def test_a_password_never_shows_however_it_is_spelt(password):
    url = f"redis://user:{password}@host:6379/0"
    assert redacted(url) == "redis://***@host:6379/0"
    assert repr(Redis(url=url)).count(password) == repr(Redis(url="redis://***@host:6379/0")).count(password)
    try:
        target = repr(parse_redis_url(url))
    except ValueError as error:
        target = str(error)
    assert f"user:{password}" not in target


def test_redacted_leaves_what_holds_no_secret():
    assert redacted("redis://h:1/0") == "redis://h:1/0"
    assert redacted("user:pw@h") == "***@h"


def test_the_password_file_is_read_at_each_connect(tmp_path):
    file = tmp_path / "password"
    file.write_text("first\n")
    redis = Redis(url="redis://u@h", password_file=str(file))
    assert redis.target().password == "first"
    assert redis.target().username == "u"
    file.write_text("second")
    assert redis.target().password == "second"
    file.unlink()
    with pytest.raises(ConfigError, match=r"redis\.passwordFile.*cannot be read"):
        redis.target()


def test_reads_go_to_the_read_url_with_the_same_credentials():
    redis = Redis(url="redis://a", read_url="redis://b", username="u", password="p")
    assert redis.target(read=True) == RedisTarget("tcp", (("b", 6379),), username="u", password="p")
    assert Redis(url="redis://a").target(read=True).nodes == (("a", 6379),)
