"""Local implementations of server-side tools, with the parts, lifecycle events and results of hosted ones.

Each module offers `toolset(config, services)`; `here` finds it by the tool's key. May import everything below agents.
Each module is imported when its tool is first placed locally, and imports its libraries when they are used.
"""
