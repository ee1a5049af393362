"""The API of the page and of the AI SDK, its WebSocket, and AG-UI.

May import `http`, `runs` and the modules beside this folder.
"""
