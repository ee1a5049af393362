"""Which proxy the environment names for a request."""

import os
import sys
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from sidestream.errors import ConfigurationError


def proxy_of(url: URL) -> str | None:
    """The proxy for this URL, if there is one; aiohttp's own look-up would add the credentials of ~/.netrc."""
    proxy = _named_for(url.scheme)
    if not proxy or proxy_bypass(url.host or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"The proxy for {url.scheme} is neither http nor https. Change the variable, "
            "or hand in an aiohttp session whose connector speaks its protocol."
        )
    return proxy


def _named_for(scheme: str) -> str | None:
    if sys.platform in ("darwin", "win32"):
        proxies = getproxies()
        return proxies.get(scheme) or proxies.get("all")
    # As getproxies does it, without a walk over the whole environment: small letters win, also empty.
    for name in (f"{scheme}_proxy", "all_proxy"):
        is_forged = name == "http_proxy" and "REQUEST_METHOD" in os.environ  # By a client's header, in a CGI program.
        value = os.environ.get(name, "" if is_forged else os.environ.get(name.upper(), ""))
        if value:
            return value
    return None
