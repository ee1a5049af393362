"""APIs for the web UI's panels and timeline: settings, conversations, runs, indexes and MCP servers.

May import `http`, `runs` and the modules beside this folder.
"""
