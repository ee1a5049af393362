"""The log of one conversation, with its segments, its writer, and the state rebuilt from its records."""
