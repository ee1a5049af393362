"""What encoder and decoder share: the keys of the session, and what the decoder must know of the request."""

from sidestream.providers.google.context import GoogleContext

SESSION_KEY = "_google_interactions_session"
"""Where a message keeps the session of a stored interaction."""
REPLAY_KEY = "_google_interactions_replay_session"
"""Where a message keeps the steps of an interaction that was not stored, for a replay."""
REPLAYED: dict[str, str] = {SESSION_KEY: "steps", REPLAY_KEY: "steps"}
"""Key of a session → the field that only a full replay needs."""


class InteractionContext(GoogleContext, frozen=True, kw_only=True):
    """Facts of the request for the decoder of an interaction."""

    store: bool = True
