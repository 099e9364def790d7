"""What handlers find in the application, and the header that all answers about the index carry."""

from collections.abc import Iterable

from aiohttp import web

from indexer.query import Query

QUERY = web.AppKey("query", Query)

AGE_HEADER = "X-KV-Index-Age"
NEVER = "never"


def age_header(ages: Iterable[float | None]) -> dict[str, str]:
    """X-KV-Index-Age: seconds since the index last moved or was confirmed current, the oldest of the asked
    pools; `never` when one of them was never written: that index is cold, not stale."""
    oldest = 0.0
    for age in ages:
        if age is None:
            return {AGE_HEADER: NEVER}
        oldest = max(oldest, age)
    return {AGE_HEADER: f"{oldest:.3f}"}
