"""Engines by name. A further engine is a package here and one line in `_BUILDERS`."""

from collections.abc import Callable

from indexer.engines import vllm
from indexer.engines.base import BlockKey, Engine
from indexer.errors import HashError

_BUILDERS: dict[str, Callable[[BlockKey], Engine]] = {
    "vllm": vllm.build,
}


def engine(key: BlockKey) -> Engine:
    """The engine that `key` names, with its hash configuration.

    Raises HashError for an unknown engine, algorithm or dialect, and for a seed that cannot be followed.
    """
    build = _BUILDERS.get(key.engine)
    if build is None:
        raise HashError("engine", f"{key.engine!r} is unknown; known: {', '.join(sorted(_BUILDERS))}")
    return build(key)
