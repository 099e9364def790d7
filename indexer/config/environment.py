"""Overrides from environment variables: `CACHE_INDEXER_INGEST_L1_ON_GAP` for `ingest.l1.onGap`."""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import yaml

from indexer.config.convert import WrongValueError, did_you_mean
from indexer.config.schema import Key, unwrap
from indexer.config.units import Duration

PREFIX = "CACHE_INDEXER_"
FILE_VARIABLE = "CACHE_INDEXER_CONFIG"
"""Names the file, as `--config` does."""

# Kubernetes gives every pod variables for each Service of its namespace, and ours have such names:
# CACHE_INDEXER_SERVICE_PORT=tcp://10.0.0.1:8080 for a Service "cache-indexer-service".
_SERVICE_LINK = re.compile(
    r"CACHE_INDEXER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://\S+")


def variable(key: Key) -> str:
    """The variable that overrides a key."""
    return PREFIX + "_".join(key.names).upper()


def overrides(env: Mapping[str, str], keys: Iterable[Key]) -> Iterator[tuple[Key, Any, str]]:
    """Every key that the environment sets, with its value as YAML would have it and the variable's name.

    An empty variable counts as absent. Raises WrongValueError for an unknown CACHE_INDEXER_ variable.
    """
    known = {variable(key): key for key in keys if not key.in_list}
    for name, text in env.items():
        if not name.startswith(PREFIX) or name == FILE_VARIABLE or not text:
            continue
        if name in known:
            yield known[name], _parsed(text, known[name].type, name), name
        elif not (_SERVICE_LINK.fullmatch(name) or _SERVICE_URL.fullmatch(text)):
            raise WrongValueError(
                "", f"{name}: unknown environment variable{did_you_mean(name, [*known, FILE_VARIABLE])}"
            )


def _parsed(text: str, annotation: Any, name: str) -> Any:
    """Text stays as it is, so that a seed of 00 stays one; anything else is read as YAML."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise WrongValueError("", f"{name}: the value is no valid UTF-8") from None
    base, _ = unwrap(annotation)
    if NoneType in get_args(base):
        return None if text == "null" else text
    if base in (str, Duration) or get_origin(base) is Literal:
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise WrongValueError("", f"{name}: the value is not readable as YAML") from None
