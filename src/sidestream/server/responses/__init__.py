"""The Responses API: requests, the log behind response ids, conversations, containers, its WebSocket.

May import `http`, `runs` and the modules beside this folder.
"""
