"""What encoder and decoder share: the keys of the session, and what the decoder must know of the request."""

from sidestream.providers.shared import decoding

SESSION_KEY = "_responses_session"
"""Where a message keeps the session of a stored response."""
REPLAY_KEY = "_responses_replay_session"
"""Where a message keeps the items of a response that was not stored, for a replay."""
REPLAYED: dict[str, str] = {SESSION_KEY: "items", REPLAY_KEY: "items"}
"""Key of a session → the field that only a full replay needs."""


class ResponsesContext(decoding.DecodeContext, frozen=True, kw_only=True):
    """Facts of the request for the decoder of a response."""

    store: bool = True
    hosted_shell: bool | None = None
