"""What the decoder must know of the request that it decodes the answer to."""

from msgspec import Struct


class DecodeContext(Struct, frozen=True, kw_only=True):
    """Facts of the request. A recording may not have them; then the defaults hold."""

    store: bool = True
    model: str | None = None
    base_url: str | None = None
    history: str | None = None
    """Digest of the messages that the request was made from."""
    hosted_shell: bool | None = None
