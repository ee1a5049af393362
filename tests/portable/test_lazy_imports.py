"""Nothing of the tools that run here is imported until it is used."""

import subprocess
import sys

PROGRAM = """
import sys
from sidestream import Agent, FileSearch, WebFetch, WebSearch, open_index
from sidestream.testing import ScriptedModel, tool_call

agent = Agent(ScriptedModel(["Hello"]), server_side_tools=[WebFetch(execution="here")])
index = open_index("unused.db")
assert agent.send_sync("Hi").output == "Hello"
heavy = "numpy apsw sqlite_vec selectolax html_to_markdown pypdfium2 docx tokenizers safetensors psycopg xllamacpp"
print([name for name in heavy.split() if name in sys.modules])
"""


def test_libraries_are_loaded_on_first_use():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
