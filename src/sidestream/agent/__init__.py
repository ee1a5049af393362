"""The public classes for agents, chats, agents as tools, generated media and embeddings.

May import everything below: `run`, `turn`, `store`, `mcp`, `wire`, `providers` (the protocol only), `tools`, `messages`
and `stream`.
"""
