"""The API of the web UI and the AI SDK, its WebSocket, and AG-UI.

May import `http`, `runs` and the modules beside this folder.
"""
