"""Blobs in a bucket with the S3 API, which needs the extra `s3`.

Keys and the endpoint come from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
`AWS_REGION`, `AWS_ENDPOINT_URL`, or the machine's role.
"""

import os
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sidestream.errors import ConfigurationError, MissingExtraError, StoreError
from sidestream.store.blobs.folder import GRACE_S, BlobStore, checked, is_digest
from sidestream.text.redaction import register_secret

if TYPE_CHECKING:
    from obstore.store import S3Store

TIMEOUT_S = 30.0
"""Timeout of one request, and of all attempts of one operation, in seconds."""
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADVICE = {
    "FileNotFoundError": "the bucket does not exist; create it first",
    "PermissionError": "access was denied; check the rights of the key",
    "PermissionDeniedError": "access was denied; check the rights of the key",
    "UnauthenticatedError": "the key was refused; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
}


class BlobBucket(BlobStore):
    """Blobs under a prefix of a bucket, given as `s3://bucket/prefix`."""

    def __init__(self, url: str, *, grace_s: float = GRACE_S) -> None:
        super().__init__(grace_s=grace_s)
        parts = urlsplit(url)
        if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
            # Keep the URL out of the message: it may hold a key.
            raise ConfigurationError(
                "the blob URL must be s3://bucket/prefix; keys and the endpoint come from the environment "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL)"
            )
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._objects: S3Store | None = None

    def __repr__(self) -> str:
        return f"BlobBucket({self.place!r})"

    @property
    def place(self) -> str:
        """URL of the bucket and prefix."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes, unless the object exists already."""
        obstore = _client()
        if not self.touch(digest, len(data)):
            with self._errors():
                obstore.put(self._opened(), _key(digest), data)

    def touch(self, digest: str, size: int | None = None) -> bool:
        """Return whether the object exists, with this size if one is given."""
        obstore = _client()
        key = _key(digest)
        with self._errors():
            try:
                found = obstore.head(self._opened(), key)
            except FileNotFoundError:
                return False
        return size in (None, found["size"])

    def load(self, digest: str) -> bytes:
        """Return the bytes of the object."""
        obstore = _client()
        key = _key(digest)
        with self._errors():
            try:
                return bytes(obstore.get(self._opened(), key).bytes())
            except FileNotFoundError:
                pass
        raise self.missing(digest)

    def remove(self, digests: Iterable[str]) -> None:
        """Delete those of the objects that exist."""
        obstore = _client()
        if keys := [_key(digest) for digest in digests]:
            with self._errors():
                obstore.delete(self._opened(), keys)

    def shards(self) -> list[str]:
        """Return the distinct first two characters of the stored digests."""
        obstore = _client()
        with self._errors():
            found = obstore.list_with_delimiter(self._opened())["common_prefixes"]
        return sorted(name for name in found if re.fullmatch("[0-9a-f]{2}", name))

    def old(self, shard: str) -> list[str]:
        """Return the digests in one shard that are older than the grace period."""
        obstore = _client()
        found: list[Any] = []
        with self._errors():
            for page in obstore.list(self._opened(), prefix=f"{shard}/"):
                found += page
        limit = datetime.now(UTC) - timedelta(seconds=self.grace_s)
        names = (str(each["path"]).replace("/", "") for each in found if each["last_modified"] <= limit)
        return sorted(name for name in names if is_digest(name))

    def close(self) -> None:
        """Close the connections. The next use opens them again."""
        self._objects = None

    def _opened(self) -> "S3Store":
        if self._objects is not None:
            return self._objects
        from obstore.store import S3Store

        for name in _SECRETS:
            register_secret(os.environ.get(name, ""))
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
        seconds = timedelta(seconds=TIMEOUT_S)
        self._objects = S3Store(
            self._bucket,
            prefix=self._prefix or None,
            config={"endpoint": endpoint} if endpoint else None,
            client_options={"allow_http": (endpoint or "").startswith("http://"), "timeout": seconds},
            retry_config={"max_retries": 5, "retry_timeout": seconds},
        )
        return self._objects

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Convert bucket errors in the block to StoreError."""
        try:
            yield
        except (_client().exceptions.BaseError, OSError) as error:
            # Keep the server's message out: it repeats parts of the signed request.
            advice = _ADVICE.get(type(error).__name__)
            shown = advice or "the bucket cannot be reached; check AWS_ENDPOINT_URL and AWS_REGION, then try again"
            raise StoreError(f"{self.place}: {shown}", retryable=advice is None) from None


def _client() -> Any:
    try:
        import obstore
    except ImportError as error:
        raise MissingExtraError("s3", "blobs in a bucket") from error
    return obstore


def _key(digest: str) -> str:
    return f"{checked(digest)[:2]}/{digest[2:]}"
