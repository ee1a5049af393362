"""Server-side tools on this machine, one module for each.

May import the other folders of `portable`.
"""
