"""The write side of cache-indexer: leadership, discovery, event streams, sweeping.

Imports `indexer`, never the other way round.
"""
