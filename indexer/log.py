"""Logs: one JSON object a line on stderr, or readable text when stderr is a terminal.

    configure("info")
    log = get(__name__)
    log.info("stream opened", ip="10.0.0.7", rank=0)

What libraries log through `logging` comes out the same way. Secrets are taken out of everything last, so
that no caller can forget it.
"""

import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from indexer import clock

_USER_INFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s\"'<>]*@")
_SECRET_KEYS = frozenset({"password", "passwd", "secret", "authorization", "auth"})
_HIDDEN = "***"


def configure(level: str = "info", stream: TextIO | None = None, *, text: bool | None = None) -> None:
    """Set up logging of this process. `text` None: readable on a terminal, JSON otherwise.

    `level` is one of `log.level`'s values. May be called again; the last call counts.
    """
    stream = stream or sys.stderr
    as_text = stream.isatty() if text is None else text
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        _timestamp,
        structlog.processors.format_exc_info,
        redact,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if as_text
        else structlog.processors.JSONRenderer(default=repr, ensure_ascii=False)
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:3], structlog.stdlib.ExtraAdder(), *shared[3:]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module; may be asked for before `configure`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Take users and passwords out of URLs wherever they stand, and the values of keys that name secrets."""
    return {key: _clean(key, value) for key, value in event.items()}


def _clean(key: str, value: Any) -> Any:
    if key.startswith("_"):  # the formatter's own: the log record
        return value
    if key.casefold() in _SECRET_KEYS:
        return _HIDDEN
    if isinstance(value, str):
        return _USER_INFO.sub(rf"\1{_HIDDEN}@", value)
    if isinstance(value, Mapping):
        return {name: _clean(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean("", inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _clean("", repr(value))


def _timestamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    moment = datetime.fromtimestamp(clock.wall(), UTC)
    event["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event
