"""HTTP: the only package that opens sockets to providers.

May import `providers.calls` and the modules at the root of `sidestream`.
"""
