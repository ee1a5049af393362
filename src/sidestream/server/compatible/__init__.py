"""The Chat Completions and Messages APIs.

May import `http`, `runs` and the modules beside this folder.
"""
