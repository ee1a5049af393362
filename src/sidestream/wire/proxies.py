"""Proxies from the environment."""

import os
import sys
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from sidestream.errors import ConfigurationError


def proxy_of(url: URL) -> str | None:
    """The proxy for the URL, if there is one; aiohttp's own lookup would add the credentials of ~/.netrc."""
    proxy = _named_for(url.scheme)
    if not proxy or proxy_bypass(url.host or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"The proxy for {url.scheme} is neither http nor https. Change the variable, "
            "or pass in an aiohttp session whose connector supports its protocol."
        )
    return proxy


def _named_for(scheme: str) -> str | None:
    if sys.platform in ("darwin", "win32"):
        proxies = getproxies()
        return proxies.get(scheme) or proxies.get("all")
    # As in getproxies, without a loop over the whole environment: lowercase names win, even if empty.
    for name in (f"{scheme}_proxy", "all_proxy"):
        is_forged = (
            name == "http_proxy" and "REQUEST_METHOD" in os.environ
        )  # from a header of a client, in a CGI program
        value = os.environ.get(name, "" if is_forged else os.environ.get(name.upper(), ""))
        if value:
            return value
    return None
