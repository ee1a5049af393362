"""HTTP: requests, streams, downloads, retries. No other package opens sockets to providers.

May import `transport`, `text` and the modules at the root of `sidestream`.
"""
