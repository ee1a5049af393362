"""Terminal output: lines, a live screen, Markdown, images.

May import the modules beside this folder.
"""
