"""What may stand in a configuration, read off the Structs: keys, types, limits, defaults, descriptions."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, structs

from indexer.config.units import Duration


class Key(Struct, frozen=True):
    """One key. `path` is as in messages (`ingest.l1.backoffInitial`); lists of mappings go on with `[]`."""

    path: str
    names: tuple[str, ...]
    """The Python names on the way to it."""
    type: Any
    default: Any
    """The value when the key is absent; `msgspec.NODEFAULT` when it must be there."""
    doc: str

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return describe(self.type)

    @property
    def in_list(self) -> bool:
        """True for a key of a list's entries, of which there is not one but any number."""
        return "[]" in self.path


def keys(section: type[Struct], path: str = "", names: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key below a section, in the order of the Structs. A list of mappings is itself a key, too."""
    for field in structs.fields(section):
        if is_internal(field.type):
            continue
        base, metas = unwrap(field.type)
        here = f"{path}.{field.encode_name}" if path else field.encode_name
        inner = struct_of(base)
        if inner is None or get_origin(base) is tuple:
            doc = next((meta.description for meta in reversed(metas) if meta.description), "")
            default = field.default
            yield Key(here, (*names, field.name), field.type, default, doc)
        if inner is not None:
            yield from keys(inner, here + "[]" * (get_origin(base) is tuple), (*names, field.name))


def unwrap(annotation: Any) -> tuple[Any, list[Meta]]:
    """A type without `Annotated`, and what was annotated to it."""
    if get_origin(annotation) is Annotated:
        base, *metas = get_args(annotation)
        return base, [meta for meta in metas if isinstance(meta, Meta)]
    return annotation, []


def struct_of(annotation: Any) -> type[Struct] | None:
    """The Struct that a type is, or is a list of; else None."""
    base, _ = unwrap(annotation)
    if get_origin(base) is tuple:
        base, _ = unwrap(get_args(base)[0])
    return base if isinstance(base, type) and issubclass(base, Struct) else None


def is_internal(annotation: Any) -> bool:
    """True for a field that the loader sets, which is no key."""
    return _extra(annotation, "internal")


def is_secret(annotation: Any) -> bool:
    """True for a value that no message may show."""
    return _extra(annotation, "secret")


def _extra(annotation: Any, name: str) -> bool:
    return any((meta.extra or {}).get(name, False) for meta in unwrap(annotation)[1])


def describe(annotation: Any) -> str:
    """The values that a type allows, in words."""
    base, metas = unwrap(annotation)
    if get_origin(base) is Literal:
        return "one of " + ", ".join(get_args(base))
    if get_origin(base) in (Union, types.UnionType):
        return " or ".join(describe(part) for part in get_args(base))
    if get_origin(base) is tuple:
        return "list of " + ("mappings" if struct_of(base) else "text")
    if base is int:
        low = next((meta.ge for meta in metas if meta.ge is not None), None)
        high = next((meta.le for meta in metas if meta.le is not None), None)
        return f"integer from {low} to {high}" if high is not None else f"integer from {low}"
    if base is Duration:
        return "duration"
    if base is str:
        return "text" if not any(meta.min_length for meta in metas) else "text that is not empty"
    return {bool: "true or false", type(None): "null"}.get(base, "mapping of keys")


def default_text(value: Any) -> str:
    """A default as one would write it in the file; empty for a key that must be there."""
    if value is NODEFAULT:
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(default_text(item) for item in value) + "]"
    if isinstance(value, str) and (not value or value.isdecimal()):
        return f'"{value}"'
    return str(value)
