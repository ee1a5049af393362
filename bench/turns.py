"""Generates the same long conversation for every library."""


def turns(count: int) -> list[tuple[str, str]]:
    """Return `count` messages as (role, text), starting with the user's, to precede the next prompt."""
    roles = ("user", "assistant")
    return [(roles[n % 2], f"Message {n}: " + "some words about one thing or another. " * 5) for n in range(count)]
