"""Typed output: from a type to the schema of an answer, and from the answer's text to a value.

May import the modules at the root of `sidestream`. pydantic is loaded when the first type is read, not when this
package is imported.
"""

from sidestream.output.problems import OutputError
from sidestream.output.types import OutputSchema, OutputType, output_type

__all__ = ["OutputError", "OutputSchema", "OutputType", "output_type"]
