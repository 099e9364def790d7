"""One way to connect to Redis, in all the forms it comes in.

    redis://[user:password@]host[:port][/db]      rediss:// with TLS
    unix:///path/to/socket[?db=0]
    sentinel://[user:password@]host[:port],host[:port]/service[/db]     sentinels:// with TLS
    cluster://[user:password@]host[:port],host[:port]                   clusters:// with TLS

`redis+sentinel`, `rediss+sentinel`, `redis+cluster` and `rediss+cluster` are other names of the last four. Query parameters
go to the client library (ssl_ca_certs=..., sentinel_username=..., client_name=...).
"""
