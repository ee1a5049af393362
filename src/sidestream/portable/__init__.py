"""Server-side tools that run here, on this machine, with the parts, stages and results of hosted ones.

Each module offers `toolset(config, services)`; `here` finds it by the tool's key. May import everything below agents;
each module is imported when its tool is first placed here, and imports its libraries when they are used.
"""
