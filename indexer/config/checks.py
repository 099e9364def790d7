"""What single types can't say: the form of texts, and values that contradict each other."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from indexer.config.convert import WrongValueError, shown
from indexer.config.pool import BlockKey, Discovery, Labels, Pool, Static
from indexer.config.redis_url import parse_redis_url
from indexer.config.tree import Collector, Config, Http, Redis
from indexer.config.units import parse_addr
from indexer.engines import engine as engine_of
from indexer.errors import HashError

T = TypeVar("T")

_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_INSTANCE = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_ENDPOINT = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})|ipc://.+")
_HTTP = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:([0-9]{1,5}))?/?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?" + _LABEL_VALUE.pattern)
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")

_HASH_FIELDS = {"algo": "prefixCachingHashAlgo", "seed": "pythonHashSeed"}
"""Keys of `blockKey` that a hash rule calls otherwise."""


def check(config: Config) -> None:
    """Check the whole; raises WrongValueError for the first contradiction."""
    _addresses(config.http, config.collector)
    _redis(config.redis, "redis")
    if config.collector.lease_duration < 3 * config.redis.timeout:
        # Renewed at a third: one renewal may time out and the next still comes in time.
        raise WrongValueError(
            "collector.leaseDuration",
            f"{config.collector.lease_duration} is shorter than three times redis.timeout "
            f"({config.redis.timeout}): one slow answer would cost the leadership",
        )
    l1 = config.ingest.l1
    if l1.backoff_initial > l1.backoff_max:
        raise WrongValueError(
            "ingest.l1.backoffInitial",
            f"{l1.backoff_initial} is longer than ingest.l1.backoffMax ({l1.backoff_max})",
        )


def check_pools(pools: Iterable[tuple[str, Pool]]) -> None:
    """Check each pool, given with the path of its keys, and that no two claim the same engines."""
    names: dict[str, str] = {}
    claims: dict[object, str] = {}
    for path, pool in pools:
        name_path = f"{path}.name" if path else "pool"
        if not _POOL.fullmatch(pool.name):
            raise _wrong(name_path, pool.name, "at most 63 letters, digits, dots, dashes and underscores")
        if pool.name in names:
            raise WrongValueError(name_path, f"{shown(pool.name)} is the name of two pools")
        names[pool.name] = path
        _block_key(pool.block_key, _below(path, "blockKey"))
        _discovery(pool.discovery, _below(path, "discovery"))
        for claim, text in _claims(pool.discovery):
            if claim in claims:
                raise WrongValueError(
                    _below(path, "discovery"), f'{text} also belongs to pool "{claims[claim]}"'
                )
            claims[claim] = pool.name


def check_static(static: Static, path: str) -> None:
    """Check engines and masters written down by hand."""
    instances: set[str] = set()
    endpoints: set[str] = set()
    for i, engine in enumerate(static.engines):
        here = _below(path, f"engines[{i}]")
        if not _INSTANCE.fullmatch(engine.ip):
            raise _wrong(f"{here}.ip", engine.ip, "an IP address (without brackets) or a host name")
        _once(f"{here}.ip", engine.ip, instances)
        for j, rank in enumerate(engine.ranks):
            for key, endpoint in (("events", rank.events), ("replay", rank.replay)):
                if endpoint is None:
                    continue
                where = f"{here}.ranks[{j}].{key}"
                match = _ENDPOINT.fullmatch(endpoint)
                if match is None or (match[2] and not 0 < int(match[2]) < 65536):
                    raise _wrong(where, endpoint, "tcp://host:port")
                _once(where, endpoint, endpoints)
    masters: set[str] = set()
    for i, master in enumerate(static.mooncake_masters):
        where = _below(path, f"mooncakeMasters[{i}].http")
        match = _HTTP.fullmatch(master.http)
        if match is None or (match[3] and not 0 < int(match[3]) < 65536):
            raise _wrong(where, master.http, "http://host:port")
        _once(where, master.http.rstrip("/"), masters)


def _addresses(http: Http, collector: Collector) -> None:
    for path, addr in (("http.addr", http.addr), ("collector.addr", collector.addr)):
        _form(path, addr, parse_addr)
    if http.addr == collector.addr and http.port:
        raise WrongValueError("collector.addr", f"{shown(collector.addr)} is also http.addr")


def _redis(redis: Redis, path: str) -> None:
    targets = [_form(f"{path}.url", redis.url, parse_redis_url)]
    if redis.read_url:
        targets.append(_form(f"{path}.readUrl", redis.read_url, parse_redis_url))
        if any(target.kind == "embedded" for target in targets):
            raise WrongValueError(f"{path}.readUrl", "has no sense with the embedded server")
    if redis.password and redis.password_file:
        raise WrongValueError(f"{path}.passwordFile", f"stands beside {path}.password; give one of them")
    if any(target.password for target in targets) and (redis.password or redis.password_file):
        raise WrongValueError(f"{path}.password", "is given in the URL and beside it; give it once")
    for key, name in (("passwordFile", redis.password_file), ("tls.caFile", redis.tls.ca_file)):
        if name:
            _readable(f"{path}.{key}", name)
    if (redis.tls.ca_file or redis.tls.insecure) and not any(target.tls for target in targets):
        raise WrongValueError(f"{path}.tls", "is given, but no URL asks for TLS (rediss://)")


def _block_key(block_key: BlockKey, path: str) -> None:
    # The engine knows which algorithms, seeds and dialects go together.
    try:
        engine_of(block_key)
    except HashError as error:
        raise WrongValueError(f"{path}.{_HASH_FIELDS.get(error.field, error.field)}", error.why) from None


def _discovery(discovery: Discovery, path: str) -> None:
    if discovery.source == "file" and not discovery.file:
        raise WrongValueError(f"{path}.file", 'is missing; source "file" needs it')
    if discovery.source != "file" and discovery.file:
        raise WrongValueError(f"{path}.file", f'is given, but {path}.source is "{discovery.source}"')
    if discovery.source != "static" and discovery.static != Static():
        raise WrongValueError(f"{path}.static", f'is given, but {path}.source is "{discovery.source}"')
    check_static(discovery.static, f"{path}.static")
    _labels(discovery.labels, f"{path}.labels")
    for key, name in (("dpSizeKey", discovery.vllm.dp_size_key), ("dpIndexKey", discovery.vllm.dp_index_key)):
        if name:
            _label_key(f"{path}.vllm.{key}", name)
    for key, name in (
        ("vllm.zmqPortName", discovery.vllm.zmq_port_name),
        ("vllm.replayPortName", discovery.vllm.replay_port_name),
        ("mooncakeMaster.httpPortName", discovery.mooncake_master.http_port_name),
        ("mooncakeMaster.rpcPortName", discovery.mooncake_master.rpc_port_name),
    ):
        if not _PORT_NAME.fullmatch(name):
            raise _wrong(f"{path}.{key}", name, "a container port's name: at most 15 of a-z, 0-9 and -")


def _labels(labels: Labels, path: str) -> None:
    for key, name in (
        ("engineKey", labels.engine_key),
        ("pdRoleKey", labels.pd_role_key or labels.engine_key),
        ("kvManagerKey", labels.kv_manager_key),
    ):
        _label_key(f"{path}.{key}", name)
    values = [("engineValue", labels.engine_value), ("kvManagerValue", labels.kv_manager_value)]
    values += [(f"pdRoleValue[{i}]", value) for i, value in enumerate(labels.pd_role_value)]
    for key, value in values:
        if not _LABEL_VALUE.fullmatch(value):
            raise _wrong(f"{path}.{key}", value, "a Kubernetes label value")


def _label_key(path: str, name: str) -> None:
    if not _LABEL_KEY.fullmatch(name):
        raise _wrong(path, name, "a Kubernetes label key such as openfuyao.com/engine")


def _claims(discovery: Discovery) -> Iterable[tuple[object, str]]:
    """What a pool takes for itself alone, and how to say it."""
    if discovery.source == "file":
        yield ("file", discovery.file), f"the file {discovery.file}"
    elif discovery.source == "kubernetes":
        labels = discovery.labels
        engines = (labels.engine_key, labels.engine_value, labels.pd_role_key)
        for role in labels.pd_role_value if labels.pd_role_key else ("",):
            selector = f"{labels.engine_key}={labels.engine_value}"
            if role:
                selector += f", {labels.pd_role_key}={role}"
            yield (discovery.namespace, *engines, role), f"the pod selector {selector}"
    for engine in discovery.static.engines:
        yield ("ip", engine.ip), f"engine {engine.ip}"
        for rank in engine.ranks:
            yield ("events", rank.events), f"endpoint {rank.events}"


def _form(path: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise WrongValueError(path, f"{shown(text)} {error}") from None


def _readable(path: str, name: str) -> None:
    try:
        with Path(name).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise WrongValueError(path, f"{shown(name)} cannot be read: {error.strerror}") from None


def _once(path: str, value: str, seen: set[str]) -> None:
    if value in seen:
        raise WrongValueError(path, f"{shown(value)} stands twice; each address belongs to one only")
    seen.add(value)


def _wrong(path: str, value: str, allowed: str) -> WrongValueError:
    return WrongValueError(path, f"{shown(value)} is not allowed; allowed: {allowed}")


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
