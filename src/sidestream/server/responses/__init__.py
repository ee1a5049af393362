"""The Responses API: requests, the log behind response ids, conversations, containers and its WebSocket.

May import `http`, `runs` and the modules beside this folder.
"""
