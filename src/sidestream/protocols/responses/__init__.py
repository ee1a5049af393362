"""Conversion of parts to the events and objects of the Responses API."""
