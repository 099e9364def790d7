"""Reading the configuration: the file, then the environment, then options; checked once, as a whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from indexer.config import environment, schema, yaml_file
from indexer.config.checks import check, check_pools, check_static
from indexer.config.convert import WrongValueError, convert, did_you_mean
from indexer.config.pool import Pool, Static
from indexer.config.tree import DEFAULT_REDIS_URL, Config, File
from indexer.errors import ConfigError

DEFAULT_FILE = Path("/etc/cache-indexer/config.yaml")

Raw = dict[str, Any]


def load(
    path: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    default_file: Path = DEFAULT_FILE,
) -> Config:
    """Load and check the configuration; raises ConfigError that names the key, the value and what is allowed.

    `path` (or CACHE_INDEXER_CONFIG in `env`) names the file, which must then exist; without one the default
    file is read when there is one. Then come the variables of `env`, and last `overrides`, by full key
    (`{"redis.url": "embedded"}`) with values as YAML has them.
    """
    env = {} if env is None else env
    named = path or env.get(environment.FILE_VARIABLE)
    file = Path(named or default_file)
    origin: dict[str, str] = {}
    try:
        raw = _mapping(yaml_file.parse(_content(file, must_exist=bool(named)), str(file)))
        keys = list(schema.keys(File))
        for key, value, variable in environment.overrides(env, keys):
            _put(raw, key.path, value)
            origin[key.path] = f"environment variable {variable}"
        for name, value in (overrides or {}).items():
            origin[name] = "option"
            _known(name)
            _put(raw, name, value)
        return _resolved(raw, env.get("POD_NAMESPACE", ""))
    except WrongValueError as error:
        place = _origin(error.path, origin) or (str(file) if file.exists() else "")
        raise ConfigError(f"{error} ({place})" if place else str(error)) from None


def load_static(path: str | Path) -> Static:
    """Read the file of `discovery.file`; raises ConfigError."""
    file = Path(path)
    try:
        static = convert(yaml_file.parse(_content(file, must_exist=True), str(file)), Static)
        check_static(static, "")
    except WrongValueError as error:
        raise ConfigError(f"{error} ({file})") from None
    return static


def _content(file: Path, must_exist: bool) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        if not must_exist:
            return b""
        raise ConfigError(f"{file}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _mapping(raw: object) -> Raw:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise WrongValueError("", "the file is no mapping of keys")
    return raw


def _known(name: str) -> None:
    """Refuse an option for a key that does not exist: a mistake of the caller's."""
    paths = {key.path for key in schema.keys(File)} | {"discovery.static"}
    if name not in paths:
        raise WrongValueError(name, f"unknown key{did_you_mean(name, paths)}")


def _put(raw: Raw, path: str, value: Any) -> None:
    """Set a key by its full name. Where a section is not a mapping, its own refusal follows later."""
    *sections, key = path.split(".")
    for section in sections:
        inner = raw.get(section)
        if inner is None:
            inner = raw[section] = {}
        if not isinstance(inner, dict):
            return
        raw = inner
    raw[key] = value


def _origin(path: str, origin: Mapping[str, str]) -> str | None:
    """Where the value at a path, or the section around it, came from, when not from the file."""
    for key, text in origin.items():
        if path == key or path.startswith((f"{key}.", f"{key}[")):
            return text
    return None


def _resolved(raw: Raw, namespace: str) -> Config:
    """The file's shape turned into the program's."""
    file = convert(raw, File)
    pools: list[tuple[str, Pool]]
    if not file.pools:
        pools = [("", Pool(file.pool, file.block_key, file.discovery))]
    elif raw.get("pool") is not None:
        raise WrongValueError("pool", "stands beside pools; name the pools there only")
    else:
        # What a pool does not say itself it takes from the blockKey and discovery at the top.
        shared = {key: raw[key] for key in ("blockKey", "discovery") if raw.get(key) is not None}
        pools = [
            (f"pools[{i}]", convert(_merged(shared, pool or {}), Pool, f"pools[{i}]"))
            for i, pool in enumerate(raw["pools"])
        ]
    pools = [(path, _in_namespace(pool, namespace)) for path, pool in pools]
    redis = structs.replace(
        file.redis,
        url=file.redis.url or DEFAULT_REDIS_URL,
        url_given=bool((raw.get("redis") or {}).get("url")),
    )
    config = Config(file.log, file.http, redis, file.collector, file.ingest, tuple(pool for _, pool in pools))
    check(config)
    check_pools(pools)
    return config


def _in_namespace(pool: Pool, namespace: str) -> Pool:
    if pool.discovery.namespace:
        return pool
    return structs.replace(pool, discovery=structs.replace(pool.discovery, namespace=namespace))


def _merged(base: Raw, over: Raw) -> Raw:
    """`over` with what it lacks from `base`, mapping by mapping; lists are not mixed."""
    merged = base | over
    for key, below in base.items():
        if isinstance(below, dict) and key in over:
            merged[key] = _merged(below, over[key] or {})
    return merged
