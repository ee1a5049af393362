"""Chats in the terminal: sessions, approvals, forms and line input.

May import `inputs`, `display` and the modules beside this folder.
"""
