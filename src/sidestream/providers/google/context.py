"""What encoder and decoder share: the keys of the session, and what the decoder must know of the request."""

from sidestream.providers.shared import decoding

PROVIDER_NAME = "google"
TELEMETRY_NAME = "gcp.gemini"

SESSION_KEY = "_google_session"
"""Where a message keeps the layout of its parts, so that signatures are sent back exactly where they came."""
REPLAYED = {SESSION_KEY: "parts"}
"""Key of a session → the field that only a replay needs."""
GROUNDING_KEY = "grounding_metadata"
"""Where message and result keep what the answer is grounded in."""


class GoogleContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Facts of the request for the decoders of both APIs."""

    drafts: bool = False
    """True: a later request is for the typed answer, so the text of this response is a draft and no output."""
    screen: tuple[int, int] | None = None
    """Width and height of the screen that the model acts on; None if it acts on none."""
    functions: frozenset[str] = frozenset()
    """The functions that the request declared; all others are predefined."""
