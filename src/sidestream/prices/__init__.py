"""What answers cost: prices as data, what a provider bills, and the product of both. Imports the stream and below.

`table.json` holds the list prices; `python -m tools.prices` makes it. It is read when a cost is first computed.
"""
