"""The server's runs: started, executed, tailed, limited and ended.

May import the modules beside this folder and no other folder of the server.
"""
