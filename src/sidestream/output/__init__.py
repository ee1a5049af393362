"""Typed output: conversion of a type to an answer's schema, and of the answer's text to a value.

May import the modules at the root of `sidestream`. pydantic is loaded when the first type is read, not when this
package is imported.
"""

from sidestream.output.types import OutputSchema, OutputType, output_type
from sidestream.output.validators import OutputError

__all__ = ["OutputError", "OutputSchema", "OutputType", "output_type"]
