"""What a command is given: options, files, stored names, a model, an agent, a conversation.

May import the modules beside this folder.
"""
