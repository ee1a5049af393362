"""Where a URL leads to, as a message or a log may show it."""

from urllib.parse import urljoin, urlsplit


def origin_of(url: str, base: str = "") -> str:
    """Scheme, host and port: the only parts of a URL that a message may show."""
    try:
        parts = urlsplit(urljoin(base, url))
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host:
        return "an invalid URL"
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"
