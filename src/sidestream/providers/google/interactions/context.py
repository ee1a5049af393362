"""What encoder and decoder share: the keys of the session, and what the decoder must know of the request."""

from sidestream.messages.sessions import RequestHistory

SESSION_KEY = "_google_interactions_session"
"""Where a message keeps the session of a stored interaction."""
REPLAY_KEY = "_google_interactions_replay_session"
"""Where a message keeps what it takes to send the steps of an interaction again that was not stored."""


class InteractionContext(RequestHistory, frozen=True, kw_only=True):
    """Facts of the request. A recording may not have them; then the defaults hold."""

    store: bool = True
    model: str | None = None
    base_url: str | None = None
    drafts: bool = False
    """True: the typed answer is asked for later, so this response's text is a draft and no output."""
