"""The process of a local server, its descendants, and its pipes."""
