"""Shared parts of encoder and decoder: session keys and request context."""

from sidestream.providers.google.context import GoogleContext

SESSION_KEY = "_google_interactions_session"
"""Metadata key for the session of a stored interaction."""
REPLAY_KEY = "_google_interactions_replay_session"
"""Metadata key for the steps of an interaction that was not stored, to resend them."""
REPLAYED: dict[str, str] = {SESSION_KEY: "steps", REPLAY_KEY: "steps"}
"""Session key → the field that only resending the whole history needs."""


class InteractionContext(GoogleContext, frozen=True, kw_only=True):
    """Request context for the decoder of an interaction."""

    store: bool = True
