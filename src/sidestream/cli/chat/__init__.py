"""A conversation at the terminal: its session, approvals, forms and the line that is typed.

May import `inputs`, `display` and the modules beside this folder.
"""
