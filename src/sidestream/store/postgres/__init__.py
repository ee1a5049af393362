"""The event log in PostgreSQL."""
