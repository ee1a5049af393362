"""Large files: one download to disk that continues where an earlier one broke off."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import aiohttp
from msgspec import Struct
from yarl import URL

from sidestream.errors import ConfigurationError, ConnectError, ProviderError, RunError
from sidestream.version import __version__
from sidestream.wire.download import MAX_REDIRECTS, REDIRECTS
from sidestream.wire.egress import AddressRefusedError, check_url, is_same_origin, parsed_url, public_only, refusal_in
from sidestream.wire.origins import origin_of
from sidestream.wire.pool import shared_pool

MAX_TRIES: Final = 5
"""How often a download that breaks is continued; each try must get further."""
IDLE_TIMEOUT_S: Final = 60.0
RESERVE_BYTES: Final = 64 * 1024 * 1024
"""What must stay free on the disk."""
_DIGEST: Final = re.compile(r'"?([0-9a-f]{64})"?')


class Downloaded(Struct, frozen=True):
    """A file on disk, and the SHA-256 digest that its server named, if it did."""

    path: Path
    sha256: str | None = None


class _Broken(Exception):
    """The connection broke; what has come is kept."""


async def download_file(
    url: str, target: Path, *, progress: Callable[[int, int | None], None], headers: Mapping[str, str] | None = None
) -> Downloaded:
    """Downloads to a path. If it breaks, what has come stays beside it, and the next call continues there.

    The host of the address was named by the user; those of redirects must be public, and get none of the headers.
    Raises ConfigurationError if the disk is too small, RunError if the download fails.
    """
    part = target.with_name(f"{target.name}.part")
    note = target.with_name(f"{target.name}.part.json")
    os.makedirs(target.parent, mode=0o700, exist_ok=True)
    for attempt in range(MAX_TRIES):
        had = part.stat().st_size if part.exists() else 0
        try:
            digest = await _try(url, part, note, progress, dict(headers or {}))
        except _Broken as error:
            has = part.stat().st_size if part.exists() else 0
            if attempt == MAX_TRIES - 1 or has <= had:
                raise ConnectError(
                    f"the download from {origin_of(url)} broke ({error}) after {has} bytes; run the command again to "
                    "continue there",
                    code="download",
                ) from None
            continue
        os.replace(part, target)
        note.unlink(missing_ok=True)
        return Downloaded(target, digest)
    raise AssertionError


async def _try(
    url: str, part: Path, note: Path, progress: Callable[[int, int | None], None], headers: dict[str, str]
) -> str | None:
    start, validator = _state(part, note, url)
    sent = {"User-Agent": f"sidestream/{__version__}", "Accept-Encoding": "identity", **headers}
    if start:
        sent |= {"Range": f"bytes={start}-", **({"If-Range": validator} if validator else {})}
    try:
        response, digest = await _opened(url, sent)
        try:
            return await _save(response, url, start, part, note, progress) or digest
        finally:
            response.close()
    except (aiohttp.ClientError, TimeoutError) as error:
        if (why := refusal_in(error)) is not None:
            raise ProviderError(f"{origin_of(url)} redirects to an address that is refused: {why}") from None
        raise _Broken(type(error).__name__) from None
    except AddressRefusedError as error:
        raise ProviderError(f"{origin_of(url)} redirects to an address that is refused: {error.why}") from None


async def _opened(url: str, headers: dict[str, str]) -> tuple[aiohttp.ClientResponse, str | None]:
    """The response after redirects, and the digest that one of them named."""
    pool = await shared_pool()
    first = target = parsed_url(url)
    digest: str | None = None
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=IDLE_TIMEOUT_S)
    for _ in range(MAX_REDIRECTS + 1):
        fields: dict[str, Any] = {"headers": headers, "allow_redirects": False, "timeout": timeout}
        if is_same_origin(first, target):
            response = await pool.session.request("GET", target, proxy=pool.proxy_of(target), **fields)
        else:
            check_url(target, public_only)
            kept = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            response = await pool.data_sessions.get(public_only, None).request(
                "GET", target, **fields | {"headers": kept}
            )
        digest = digest or _digest_in(response.headers)
        if response.status not in REDIRECTS:
            return response, digest
        response.close()
        target = URL(urljoin(str(target), response.headers.get("location", "")))
    raise ProviderError(f"{origin_of(url)} redirects more than {MAX_REDIRECTS} times", code="too-many-redirects")


async def _save(
    response: aiohttp.ClientResponse,
    url: str,
    start: int,
    part: Path,
    note: Path,
    progress: Callable[[int, int | None], None],
) -> str | None:
    if response.status == 416:  # All of it has come already, or the file is another now.
        if f"*/{start}" in response.headers.get("Content-Range", ""):
            return None
        _remove(part)
        raise _Broken("the file has changed")
    if response.status not in (200, 206):
        raise _refused(response, url)
    start = start if response.status == 206 else 0
    length = response.content_length
    total = None if length is None else start + length
    if length is not None:
        _check_disk(part.parent, length)
    validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
    _write_note(note, url, validator)
    with part.open("ab" if start else "wb") as file:
        done = start
        progress(done, total)
        async for piece in response.content.iter_any():
            await asyncio.to_thread(file.write, piece) if len(piece) > 1 << 20 else file.write(piece)
            done += len(piece)
            progress(done, total)
    if total is not None and done < total:
        raise _Broken(f"{total - done} bytes are missing")
    return None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _write_note(note: Path, url: str, validator: str | None) -> None:
    note.write_text(json.dumps({"url": url, "validator": validator}))


def _state(part: Path, note: Path, url: str) -> tuple[int, str | None]:
    """How much has come of this file, and what shows that it is still the same."""
    try:
        known = json.loads(note.read_text())
        if known.get("url") == url:
            return part.stat().st_size, known.get("validator")
    except (OSError, ValueError, AttributeError):
        pass
    return 0, None


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + RESERVE_BYTES > free:
        raise ConfigurationError(
            f"the file has {needed // 1_000_000} MB, but only {free // 1_000_000} MB are free in {folder}"
        )


def _digest_in(headers: Mapping[str, str]) -> str | None:
    found = _DIGEST.fullmatch(headers.get("X-Linked-ETag", ""))
    return found[1] if found else None


def _refused(response: aiohttp.ClientResponse, url: str) -> RunError:
    advice = {401: "it needs a token: set HF_TOKEN", 403: "it needs a token: set HF_TOKEN", 404: "check the address"}
    hint = advice.get(response.status, "try again later")
    return ProviderError(f"{origin_of(url)} answered {response.status}; {hint}", status=response.status)
