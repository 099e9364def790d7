"""L3: which blocks lie in Mooncake memory, read from Mooncake masters without disturbing them.

Pure: `keys`, `hosts`, `answers`, `gate`, `trust`, `completeness`, `view`. One master's HTTP API: `client`,
`probe`, `locate`. `master` turns polls of one master into a view, `mirror` writes what all views say into the
index, and `poller` runs it all while this process leads.
"""
