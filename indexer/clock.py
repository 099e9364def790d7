"""The one place where time is read.

Two clocks, never mixed: `monotonic` measures spans inside this process, `wall` only stamps what people
read (logs). Ages of things in Redis come from Redis's own TIME, inside the scripts: two machines' clocks
are never compared.
"""

import time


def monotonic() -> float:
    """Seconds since an arbitrary start of this process; never goes back."""
    return time.monotonic()


def wall() -> float:
    """Seconds since the Unix epoch, for people; may jump."""
    return time.time()
