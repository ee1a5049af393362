"""What the page's panels and the timeline read: settings, conversations, runs, indexes, MCP servers.

May import `http`, `runs` and the modules beside this folder.
"""
