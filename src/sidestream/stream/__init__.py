"""The canonical stream: its parts, and which sequences of them are legal.

May import only the modules at the root of `sidestream`.
"""
