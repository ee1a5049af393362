"""The canonical part stream: its parts, and the grammar of legal sequences.

May import only the modules at the root of `sidestream`.
"""
