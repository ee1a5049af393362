"""URLs of a conversation's files, signed for a day if a page of another site or a client of another API asks.

Images and links of such a page are requested without a token, so the URL itself must show that its tenant may read it.
"""

import hmac
import re
import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from os import urandom
from urllib.parse import parse_qs, urlencode

from starlette.requests import HTTPConnection

from sidestream.server.settings import ServerSettings

PATH = "/api/blobs/"
_SHARE_S = 43_200
"""Half the maximum lifetime of a URL in seconds. Within it, a file keeps its URL, so that browsers can cache it."""
_SIGNED = re.compile(rf"{PATH}([0-9a-f]{{64}})")


class SignedFiles:
    """Makes and checks the URLs of files.

    Servers with the same tokens accept each other's URLs. Without any token, URLs are valid until the server stops.
    """

    def __init__(self, settings: ServerSettings) -> None:
        owner = settings.owner_cookie or settings.owner_token
        secrets = sorted((*settings.tokens, *((owner,) if owner else ())))
        self._key = sha256("\n".join(("sidestream-files", *secrets)).encode()).digest() if secrets else urandom(32)

    def url(self, connection: HTTPConnection, digest: str) -> str:
        """Return the URL of a file for the sender of a request. It is absolute and signed for pages of other sites."""
        return PATH + digest if connection.state.origin is None else self.signed(connection, digest)

    def signed(self, connection: HTTPConnection, digest: str) -> str:
        """Return an absolute URL of a file, which works without a token."""
        owner: str = connection.state.owner
        expires = (int(time.time()) // _SHARE_S + 2) * _SHARE_S
        query = {"owner": owner, "expires": expires, "signature": self._signature(digest, owner, str(expires))}
        base = str(connection.base_url).rstrip("/")
        scheme = {"ws": "http", "wss": "https"}.get(connection.url.scheme)
        base = base if scheme is None else f"{scheme}://{base.partition('://')[2]}"
        return f"{base}{PATH}{digest}?{urlencode(query)}"

    def owner(self, path: str, query_string: bytes) -> str | None:
        """Return the tenant whose file a signed URL names, or None if the signature is missing, wrong or expired."""
        found = _SIGNED.fullmatch(path)
        if found is None or b"signature=" not in query_string:
            return None
        query = parse_qs(query_string.decode("latin-1"), keep_blank_values=True)
        owner, expires, signature = (query.get(name, [""])[0] for name in ("owner", "expires", "signature"))
        expected = self._signature(found[1], owner, expires)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        return owner if int(expires) > time.time() else None

    def _signature(self, digest: str, owner: str, expires: str) -> str:
        signed = hmac.digest(self._key, f"{digest}\n{owner}\n{expires}".encode(), "sha256")
        return urlsafe_b64encode(signed).decode().rstrip("=")
