"""Client tools, toolsets, approvals, and portable configurations of server-side tools.

May import `messages`, `stream`, `output` and the modules at the root of `sidestream`.
"""
