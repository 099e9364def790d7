"""Every error that crosses a module border.

One root, typed leaves. A script's error reply is mapped to one of these in `indexer.index.scripts` and
nowhere else; the HTTP layer maps them to status codes in `indexer.api.errors` and nowhere else.
"""


class CacheIndexerError(Exception):
    """Root of all errors that this project raises on purpose."""


class ConfigError(CacheIndexerError):
    """The configuration is wrong. The message names the key, the value and what is allowed."""


class HashError(CacheIndexerError):
    """A block hash cannot be computed: unknown algorithm or dialect, missing extra, bad token id.

    `field` names what is wrong in the hash rule's own terms (engine, algo, seed, dialect, token_ids, ...).
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class DecodeError(CacheIndexerError):
    """A frame of an engine's event stream is not what the engine's dialect allows."""


class IndexUnavailableError(CacheIndexerError):
    """Redis did not answer in time, refused the connection or is still loading."""


class IndexFullError(CacheIndexerError):
    """Redis is out of memory (`maxmemory`); writes that need memory were refused whole."""


class SchemaError(CacheIndexerError):
    """The index in Redis was written by another schema version (script error word SCHEMA)."""


class FencedError(CacheIndexerError):
    """This process does not (any more) hold the lease (script error word FENCED)."""


class LifeError(CacheIndexerError):
    """The stream or holder is not the one the writer believes in (script error word LIFE)."""


class GapError(CacheIndexerError):
    """Batches are missing before those of the call (script error word GAP)."""
