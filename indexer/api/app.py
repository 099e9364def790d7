"""The HTTP application: routes, the error boundary and what every request is counted by."""

from aiohttp import web
from aiohttp.typedefs import Handler

from indexer.api import metrics
from indexer.api.body import LIMITS, expect
from indexer.api.errors import HIT_RATE_PATH, response_of
from indexer.api.health import healthz, readyz
from indexer.api.hit_rate import hit_rate
from indexer.api.lookup import lookup
from indexer.api.openapi import openapi
from indexer.api.outage import Outage
from indexer.api.state import QUERY
from indexer.clock import monotonic
from indexer.config import Http
from indexer.errors import CacheIndexerError
from indexer.query import Query

LOOKUP_PATH = "/v1/lookup"
ROUTES = frozenset({HIT_RATE_PATH, LOOKUP_PATH, "/healthz", "/readyz", "/metrics", "/openapi.json"})
_ASKING = frozenset({HIT_RATE_PATH, LOOKUP_PATH})
_OUTAGE = web.AppKey("outage", Outage)
_UNKNOWN = "unknown"
"""Route label of requests that fit none: paths are the client's choice and must not become label values."""


def create_app(query: Query, limits: Http) -> web.Application:
    """The application over a query core. `limits` are enforced here and in `indexer.api.connection`."""
    app = web.Application(client_max_size=limits.max_hit_rate_body_bytes, middlewares=[_boundary])
    app[QUERY] = query
    app[LIMITS] = limits
    app[_OUTAGE] = Outage()
    app.router.add_route("POST", HIT_RATE_PATH, hit_rate, expect_handler=expect)
    app.router.add_route("POST", LOOKUP_PATH, lookup, expect_handler=expect)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics.metrics)
    app.router.add_get("/openapi.json", openapi)
    return app


@web.middleware
async def _boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns whatever a handler raises into its answer, and counts the request."""
    start = monotonic()
    route = request.path if request.path in ROUTES else _UNKNOWN
    try:
        answer = await handler(request)
    except (ConnectionError, web.PayloadAccessError):
        raise  # the client is gone: there is nobody to answer
    except Exception as error:
        answer = response_of(request.path, error)
        if isinstance(error, CacheIndexerError) and answer.status >= 500:
            metrics.REDIS_ERRORS.inc()
            request.app[_OUTAGE].failed(error)
    else:
        if route in _ASKING:
            request.app[_OUTAGE].answered()
    metrics.REQUESTS.labels(route, str(answer.status)).inc()
    metrics.LATENCY.labels(route).observe(monotonic() - start)
    return answer
