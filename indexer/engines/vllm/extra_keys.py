"""The third member of what vLLM hashes: LoRA, multimodal and salt keys of a block, in three dialects."""

import re
from collections.abc import Sequence
from enum import Enum

from indexer.engines.base import Prompt
from indexer.errors import HashError

Extra = tuple[object, ...] | None


class Form(Enum):
    """How extra keys enter the hash. Values are what people read."""

    BARE = "vLLM < 0.19"
    OFFSET = "vLLM 0.19-0.30"
    TAGGED = "vLLM >= 0.31"


class Version(tuple[int, ...]):
    """An engine release's numbers; compares like a tuple."""

    @classmethod
    def parse(cls, text: str) -> "Version":
        """The leading numbers of a version such as `0.18.0` or `v0.19.1rc1`. Raises HashError."""
        match = re.match(r"v?(\d{1,9})\.(\d{1,9})(?![\d])", text)
        if match is None:
            raise HashError("dialect", f"{text!r} is neither auto nor an engine version such as 0.18.0")
        return cls(int(n) for n in match.groups())


def forms(version: Version | None) -> tuple[Form, ...]:
    """The forms that an engine of this version (None: any) may use, newest first."""
    if version is None:
        return (Form.TAGGED, Form.OFFSET, Form.BARE)
    if version >= (0, 31):
        return (Form.TAGGED,)
    return (Form.OFFSET,) if version >= (0, 19) else (Form.BARE,)


def extras(form: Form, prompt: Prompt) -> Sequence[Extra] | None:
    """The extra key of each full block of `prompt`; None when no block has one.

    Raises HashError when the form needs a LoRA path that the prompt does not give.
    """
    size = prompt.block_size
    count = len(prompt.token_ids) // size
    lora = _lora(form, prompt)
    if not (lora or prompt.cache_salt or prompt.mm):
        return None
    keys: list[list[object]] = [list(lora) for _ in range(count)]
    for item in sorted(prompt.mm, key=lambda item: item.offset):
        last = min((item.offset + item.length - 1) // size, count - 1)
        for block in range(item.offset // size, last + 1):
            keys[block].append(_mm(form, item.identifier, item.offset - block * size))
    if prompt.cache_salt and keys:
        # A copy: pickle writes an object that it met before as a reference, and in an engine the salt is
        # never the object that is the LoRA name, even if the texts are equal.
        salt = prompt.cache_salt.encode(errors="surrogatepass").decode(errors="surrogatepass")
        keys[0].append(("cache_salt", salt) if form is Form.TAGGED else salt)
    return [tuple(key) if key else None for key in keys]


def _lora(form: Form, prompt: Prompt) -> tuple[object, ...]:
    if not prompt.lora_name:
        if prompt.lora_path:
            raise HashError("lora_path", "given without lora_name")
        return ()
    if form is not Form.TAGGED:
        return (prompt.lora_name,)
    if not prompt.lora_path:
        raise HashError(
            "lora_path",
            f"{form.value} hashes the path from which it loaded {prompt.lora_name!r}:"
            " give it, or an older dialect",
        )
    return (("lora", prompt.lora_name, prompt.lora_path),)


def _mm(form: Form, identifier: str, offset: int) -> object:
    if form is Form.TAGGED:
        return ("mm", identifier, offset)
    return (identifier, offset) if form is Form.OFFSET else identifier
