"""Runs of the server: begun, driven, followed, limited and ended.

May import the modules beside this folder and no other folder of the server.
"""
