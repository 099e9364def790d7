"""L3: which blocks lie in Mooncake memory, read from Mooncake masters without disturbing them.

`keys`, `hosts`, `gate`, `completeness` and `view` are pure; `client` and `probe` talk to one master; `master`
turns polls of one master into a view; `mirror` writes what all views say into the index; `poller` is the loop.
"""
