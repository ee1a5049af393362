"""Tools: typed functions as tools, toolsets, approvals, and portable configs of server-side tools.

May import `messages`, `stream`, `output` and the modules at the root of `sidestream`.
"""
