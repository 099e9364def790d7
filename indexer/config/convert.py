"""From plain YAML data to checked Structs, with messages that a person can act on."""

import difflib
import re
from collections.abc import Iterable
from datetime import date
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from indexer.config import schema
from indexer.config.redis_url import redacted
from indexer.config.units import Duration

S = TypeVar("S", bound=Struct)

_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class WrongValueError(ValueError):
    """One wrong place: `path` as `ingest.l1.backoffInitial`, and why it is wrong."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.path = path


def convert(raw: object, section: type[S], path: str = "") -> S:
    """Make a Struct of plain data; raises WrongValueError for the first thing that is wrong.

    A section without content (`http:` alone) stands for its defaults; one text for a list of one.
    """
    data = _prepared(raw, section, path)
    try:
        return msgspec.convert(data, section, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _explained(str(error), data, section, path) from None
    except UnicodeEncodeError:  # a byte of the command line that is no UTF-8
        raise WrongValueError(path, "a text is no valid Unicode") from None


def shown(value: object, secret: bool = False) -> str:
    """A value for a message: text quoted and without user info, containers by their kind only."""
    if secret:
        return "the value"
    if isinstance(value, str):
        return f'"{redacted(value)}"'
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float | date):
        return str(value)
    return "a value of another kind"  # YAML has sets and bytes, too, and they may hold a secret


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean X?" for the nearest known word, or nothing."""
    by_folded = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[close[0]]}?" if close else ""


def _decode(kind: type, value: object) -> object:
    assert kind is Duration, kind
    return Duration.parse(value)


def _prepared(raw: object, section: type[Struct], path: str) -> object:
    """Refuse unknown keys and fill in the short forms; wrong types are left to the conversion."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        return raw
    fields = {f.encode_name: f for f in structs.fields(section) if not schema.is_internal(f.type)}
    data = {}
    for key, value in raw.items():
        if key not in fields:
            hint = did_you_mean(str(key), fields) or "."
            raise WrongValueError(
                _join(path, str(key)), f"unknown key{hint} Allowed here: {', '.join(fields)}"
            )
        base, _ = schema.unwrap(fields[key].type)
        inner, here = schema.struct_of(base), _join(path, key)
        if get_origin(base) is not tuple:
            data[key] = value if inner is None else _prepared(value, inner, here)
        elif value is None:
            continue
        elif isinstance(value, str) and inner is None:
            data[key] = [value]
        elif isinstance(value, list) and inner is not None:
            data[key] = [_prepared(item, inner, f"{here}[{i}]") for i, item in enumerate(value)]
        else:
            data[key] = value
    return data


def _explained(message: str, data: object, section: type[Struct], root: str) -> WrongValueError:
    """msgspec's message in terms of the file: the full key, the value, what is allowed."""
    match = _AT.match(message)
    assert match is not None
    what, path = match["what"], (match["path"] or "")
    steps = [step for step in re.split(r"\.|(?=\[)", path) if step]
    kind: Any = section
    for step in steps:
        base, _ = schema.unwrap(kind)
        if step.startswith("["):
            kind = get_args(base)[0]
            data = data[int(step[1:-1])]  # type: ignore[index]
        else:
            kind = next(f.type for f in structs.fields(base) if f.encode_name == step)
            data = data[step]  # type: ignore[index]
    here = _join(root, path.removeprefix("."))
    if missing := _MISSING.fullmatch(what):
        return WrongValueError(_join(here, missing[1]), "is missing and has no default")
    secret = schema.is_secret(kind)
    value = shown(data, secret)
    if schema.unwrap(kind)[0] is Duration:
        return WrongValueError(here, f"{value} {what}")
    why = f"{value} is not allowed; allowed: {schema.describe(kind)}"
    if isinstance(data, int | float) and "text" in why:
        why += ". Quote it" if secret else f'. Quote it: "{data}"'
    return WrongValueError(here, why)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key and not key.startswith("[") else path + key
