"""A long conversation, the same for every library."""


def turns(count: int) -> list[tuple[str, str]]:
    """So many messages as (role, text), the user's first; what is asked next comes after them."""
    roles = ("user", "assistant")
    return [(roles[n % 2], f"Message {n}: " + "some words about one thing or another. " * 5) for n in range(count)]
