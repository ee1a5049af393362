"""A long conversation, the same for every library."""


def turns(count: int) -> list[tuple[str, str]]:
    """`count` messages as (role, text), starting with the user's; the next prompt comes after them."""
    roles = ("user", "assistant")
    return [(roles[n % 2], f"Message {n}: " + "some words about one thing or another. " * 5) for n in range(count)]
