"""The public classes: agents, chats, agents as tools, generated media, embeddings.

May import everything below: `run`, `turn`, `store`, `mcp`, `wire`, `providers` (the protocol only), `tools`, `messages`
and `stream`.
"""
