"""What encoder and decoder share: the keys of the session, and what the decoder must know of the request."""

from sidestream.messages.sessions import RequestHistory

SESSION_KEY = "_responses_session"
"""Where a message keeps the session of a stored response."""
REPLAY_KEY = "_responses_replay_session"
"""Where a message keeps what it takes to send a response again that was not stored."""


class DecodeContext(RequestHistory, frozen=True, kw_only=True):
    """Facts of the request. A recording may not have them; then the defaults hold."""

    store: bool = True
    model: str | None = None
    base_url: str | None = None
    hosted_shell: bool | None = None
