"""What every part of the configuration tree is made of."""

from typing import Annotated

from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping of the file; an unknown key in it is refused."""
