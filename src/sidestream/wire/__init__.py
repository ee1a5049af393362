"""The only rooms that open sockets. Import `sidestream.wire.http` for the transport; it brings aiohttp."""
