"""HTTP requests, streams, downloads and retries. No other package opens sockets to providers.

May import `transport`, `text` and the modules at the root of `sidestream`.
"""
