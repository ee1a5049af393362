"""An answer that cites pages the way OpenAI does: a link after each claim, and an annotation of the link."""

from collections.abc import Iterable

from sidestream.testing import ResponsesScript


def citing(claims: Iterable[tuple[str, str, str]]) -> ResponsesScript:
    """An answer with these claims, each with the URL and the title of its page."""
    text, notes = "", list[dict[str, object]]()
    for claim, url, title in claims:
        link = f"([site]({url}))"
        start = len(text) + len(claim) + 1
        text += f"{claim} {link} "
        note = {"type": "url_citation", "url": url, "title": title}
        notes.append({**note, "start_index": start, "end_index": start + len(link)})
    return ResponsesScript().text(text, annotations=notes)
