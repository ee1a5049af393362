"""The embedded engine, which keeps its tasks in the store's own SQLite or PostgreSQL database."""

from sidestream.durable.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
