"""Compaction: a history as one opaque item, which a client sends back in place of the items that it stands for.

The item is compressed text with a checksum: opaque to people, not encrypted. It holds nothing that the client did not
have already.
"""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

from sidestream.server.errors import RequestError

_PREFIX = "ssc1_"
_MAX_BYTES = 16 * 1024 * 1024


def compacted_item(text: str, id: str) -> dict[str, str]:
    """The item for a summary of a conversation."""
    data = zlib.compress(text.encode("utf-8", "surrogatepass"))
    sealed = sha256(data).digest()[:8] + data
    return {"id": id, "type": "compaction", "encrypted_content": _PREFIX + urlsafe_b64encode(sealed).decode()}


def compacted_text(content: str, param: str) -> str:
    """What `compacted_item` was made of. Raises RequestError for anything else."""
    error = RequestError(400, "this is no compaction of this server", param=param, code="invalid_compaction")
    if not content.startswith(_PREFIX):
        raise error
    try:
        sealed = urlsafe_b64decode(content.removeprefix(_PREFIX))
        if sha256(sealed[8:]).digest()[:8] != sealed[:8]:
            raise error
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(sealed[8:], _MAX_BYTES)
        if unpacking.unconsumed_tail:
            raise error
        return data.decode("utf-8", "surrogatepass")
    except (ValueError, zlib.error):
        raise error from None
