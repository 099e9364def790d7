"""The forms that `redis.url` may have, taken apart once."""

import re
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct, structs

FORMS = (
    "redis://[user:password@]host:port/db, rediss://..., unix:///path, "
    "redis+sentinel://h1:26379,h2:26379/service/db, redis+cluster://h1:6379,h2:6379, or embedded"
)
_SCHEME = re.compile(r"(redis|rediss|unix|rediss?\+sentinel|rediss?\+cluster)://(.*)", re.DOTALL)
_NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


class RedisTarget(Struct, frozen=True):
    """What a URL names. `nodes` are (host, port): the server, or the sentinels or cluster nodes to ask."""

    kind: Literal["tcp", "unix", "sentinel", "cluster", "embedded"]
    nodes: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    tls: bool = False
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"RedisTarget(kind={self.kind!r}, nodes={self.nodes!r}, path={self.path!r}, db={self.db})"


def redacted(text: str) -> str:
    """The text without what may be a user and password before an `@`; fit for logs."""
    head, at, tail = text.rpartition("@")
    if not at:
        return text
    scheme, sep, _ = head.partition("://")
    return f"{scheme}://***@{tail}" if sep else f"***@{tail}"


def parse_redis_url(url: str) -> RedisTarget:
    """Take a URL apart; raises ValueError (never with a secret in it) that says which forms there are."""
    if url == "embedded":
        return RedisTarget("embedded")
    match = _SCHEME.fullmatch(url)
    if match is None:
        raise ValueError(f"is no Redis URL; write {FORMS}")
    scheme, rest = match[1], match[2]
    userinfo, _, rest = rest.rpartition("@")
    user, _, password = userinfo.partition(":")
    target = _target(scheme, rest)
    return structs.replace(target, username=unquote(user), password=unquote(password))


def _target(scheme: str, rest: str) -> RedisTarget:
    if "?" in rest or "#" in rest:
        raise ValueError("has options after the address; use the keys beside redis.url instead")
    if scheme == "unix":
        path, db = _split_db(rest)
        if not path.startswith("/"):
            raise ValueError("needs an absolute path, as in unix:///run/redis.sock")
        return RedisTarget("unix", path=path, db=db)
    authority, _, tail = rest.partition("/")
    tls, kind = scheme.startswith("rediss"), scheme.partition("+")[2]
    if kind == "sentinel":
        service, _, db_text = tail.partition("/")
        if not service:
            raise ValueError("names no service; write redis+sentinel://h1:26379,h2:26379/service/db")
        nodes = _nodes(authority, 26379)
        return RedisTarget("sentinel", nodes=nodes, service=service, db=_db(db_text), tls=tls)
    nodes = _nodes(authority, 6379)
    if kind == "cluster":
        if tail not in ("", "0"):
            raise ValueError("names a database; a Redis Cluster has only database 0")
        return RedisTarget("cluster", nodes=nodes, tls=tls)
    if len(nodes) != 1:
        raise ValueError("names several hosts; that needs redis+sentinel:// or redis+cluster://")
    return RedisTarget("tcp", nodes=nodes, db=_db(tail), tls=tls)


def _split_db(rest: str) -> tuple[str, int]:
    """A socket path and, after a colon, a database: `/run/redis.sock:2`."""
    path, colon, db = rest.rpartition(":")
    return (path, _db(db)) if colon else (rest, 0)


def _db(text: str) -> int:
    if text and not re.fullmatch(r"[0-9]{1,5}", text):
        raise ValueError("ends in something that is no database number")
    return int(text or 0)


def _nodes(authority: str, default_port: int) -> tuple[tuple[str, int], ...]:
    nodes = []
    for node in authority.split(","):
        match = _NODE.fullmatch(node)
        if match is None or not 0 < int(match[3] or default_port) < 65536:
            raise ValueError(f"has no host and port where they belong; write {FORMS}")
        nodes.append((match[1] or match[2], int(match[3] or default_port)))
    return tuple(nodes)
