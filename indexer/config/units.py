"""Units that the configuration speaks in: durations and listen addresses."""

import re

_PART = re.compile(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|us|µs|ns|m|s)"
)  # ms before m, or "5ms" would be 5 minutes
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_ADDR = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})")

LONGEST = 30 * 24 * 3600.0
"""No duration of the configuration may be longer (seconds): beyond it a typing error is more likely."""


class Duration(float):
    """A span of time in seconds, more than 0; written as in `10s`, `500ms`, `1m30s`, `1.5h`."""

    @classmethod
    def parse(cls, text: object) -> "Duration":
        """Read a duration; raises ValueError that says what is wrong and how to write it."""
        if isinstance(text, int | float) and not isinstance(text, bool):
            raise ValueError(f'is a bare number; write a duration with its unit, such as "{text}s"')
        if not isinstance(text, str):
            raise ValueError('is not a duration; write one such as "10s", "500ms" or "1m30s"')
        if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
            raise ValueError(f'is a bare number; write a duration with its unit, such as "{text}s"')
        seconds, end = 0.0, 0
        for part in _PART.finditer(text):
            if part.start() != end:
                break
            seconds += float(part[1]) * _SECONDS[part[2]]
            end = part.end()
        if not text or end != len(text):
            raise ValueError('is not a duration; write one such as "10s", "500ms" or "1m30s"')
        if not 0 < seconds <= LONGEST:
            raise ValueError(f"is out of range; allowed is more than 0s and at most {cls(LONGEST)}")
        return cls(seconds)

    def __str__(self) -> str:
        """The shortest exact way to write it, down to a microsecond: `1m30s`."""
        rest = round(self * 1e6)
        text = ""
        for unit in ("h", "m", "s", "ms", "us"):
            count, rest = divmod(rest, round(_SECONDS[unit] * 1e6))
            if count:
                text += f"{count}{unit}"
        return text or "0s"


def parse_addr(addr: str) -> tuple[str | None, int]:
    """Split a listen address, `:28080`, `127.0.0.1:28080` or `[::1]:28080`, into host and port.

    The host is None for "every interface"; port 0 lets the system choose. Raises ValueError.
    """
    match = _ADDR.fullmatch(addr)
    if match is None or int(match["port"]) > 65535:
        raise ValueError('is not a listen address; write ":28080", "127.0.0.1:28080" or "[::1]:28080"')
    return match["v6"] or match["host"] or None, int(match["port"])
