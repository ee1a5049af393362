"""HTTP requests, responses and the transport protocol, as values.

Pure. Imports `errors`, `limits` and `text`. Providers and `wire` both depend on it.
"""
