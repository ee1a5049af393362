"""Local server-side tools, one module for each.

May import the other folders of `portable`.
"""
