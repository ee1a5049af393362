"""The parts that all HTTP APIs share: requests, event streams, files, functions and models.

May import `runs` and the modules beside this folder.
"""
