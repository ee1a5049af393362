"""A local server's process, its descendants, and its pipes."""
