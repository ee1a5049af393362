"""The engine that needs nothing but the store: tasks are rows of its database, in SQLite or PostgreSQL."""

from sidestream.durable.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
