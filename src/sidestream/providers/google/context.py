"""What encoder and decoder share: the keys of the session, and what the decoder must know of the request."""

from msgspec import Struct

PROVIDER_NAME = "google"

SESSION_KEY = "_google_session"
"""Where a message keeps the layout of its parts, so that signatures go back exactly where they came."""
GROUNDING_KEY = "grounding_metadata"
"""Where message and result keep what the answer is grounded in."""


class DecodeContext(Struct, frozen=True, kw_only=True):
    """Facts of the request. A recording may not have them; then the defaults hold."""

    model: str | None = None
    base_url: str | None = None
    drafts: bool = False
    """True: the typed answer is asked for later, so this response's text is a draft and no output."""
