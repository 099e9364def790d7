"""The library and the query side of cache-indexer: hash chain, Redis index, HTTP API, command line.

Nothing in here imports `collector`; see docs/architecture.md for the floor plan.
"""

__version__ = "0.1.0"
