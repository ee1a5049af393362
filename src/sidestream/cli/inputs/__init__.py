"""Inputs of commands: options, files, stored names, models, agents and conversations.

May import the modules beside this folder.
"""
