"""The one way to connect to Redis: a single server, a socket, Sentinel or a cluster.

Replies are bytes, RESP3, parsed by hiredis. Nothing is retried behind the caller's back: a write whose answer
got lost may have happened, and only the caller knows what it then believes.
"""

from typing import Any

from redis.asyncio import Redis as Client
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from indexer.config.redis_url import RedisTarget
from indexer.config.tree import Redis
from indexer.errors import ConfigError

_CONNECTIONS = 64


class _Credentials(CredentialProvider):
    """Read anew at each connect, so that a changed password file needs no restart."""

    def __init__(self, cfg: Redis, read: bool) -> None:
        self._cfg = cfg
        self._read = read

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        target = self._cfg.target(read=self._read)
        return (target.username, target.password) if target.username else (target.password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """What asyncio clients call; the inherited one logs a warning at each connect."""
        return self.get_credentials()


async def connect(cfg: Redis, *, read: bool = False) -> Any:
    """A client for `cfg.url`, or with `read` for `cfg.read_url` where that is given.

    Connects when first used, and again after a loss; close it with `aclose()`. ConfigError: `embedded`, which
    whoever starts the bundled server replaces by its address.
    """
    target = cfg.target(read=read)
    options = _options(cfg, target, read)
    if target.kind == "embedded":
        raise ConfigError("redis.url: embedded names no server; start one first")
    if target.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in target.nodes]
        return RedisCluster(
            startup_nodes=nodes,
            **options,
        )
    if target.kind == "sentinel":
        # Sentinels have no password of their own here, but are as far away as Redis.
        asking = {"socket_timeout": float(cfg.timeout), "socket_connect_timeout": float(cfg.timeout)}
        sentinel: Any = Sentinel(target.nodes, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        return sentinel.master_for(target.service, db=target.db, **options)
    if target.kind == "unix":
        return Client(unix_socket_path=target.path, db=target.db, **options)
    host, port = target.nodes[0]
    return Client(host=host, port=port, db=target.db, **options)


def _options(cfg: Redis, target: RedisTarget, read: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 3,
        "decode_responses": False,
        "socket_timeout": float(cfg.timeout),
        "socket_connect_timeout": float(cfg.timeout),
        "socket_keepalive": True,
        "max_connections": _CONNECTIONS,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "cache-indexer",
    }
    if target.username or target.password:
        options["credential_provider"] = _Credentials(cfg, read)
    if target.tls:
        options |= {
            "ssl": True,
            "ssl_ca_certs": cfg.tls.ca_file or None,
            "ssl_cert_reqs": "none" if cfg.tls.insecure else "required",
            "ssl_check_hostname": not cfg.tls.insecure,
        }
    return options
