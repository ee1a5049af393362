"""Typed output: conversion of a type to an answer's schema, and of the answer's text to a value.

May import the modules at the root of `sidestream`. pydantic is loaded when the first type is read, not when this
package is imported.
"""

from sidestream.output.types import OutputError, OutputSchema, OutputType, output_type

__all__ = ["OutputError", "OutputSchema", "OutputType", "output_type"]
