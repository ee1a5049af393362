"""The log of one conversation: its segments, its writer, and the state rebuilt from its records."""
