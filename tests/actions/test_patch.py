"""Diffs that a model proposes, applied to texts."""

import pytest

from requirements import requirement
from sidestream.actions import PatchError, apply_diff

TEXT = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


@requirement("R114")
@pytest.mark.parametrize(
    ("text", "diff", "expected"),
    [
        ("", "+a\n+b\n", "a\nb\n"),
        ("", "+a\n+\n+b", "a\n\nb\n"),
        ("a\nb\nc\n", "@@\n a\n-b\n+B\n c\n", "a\nB\nc\n"),
        ("a\nb\nc\n", "-b\n", "a\nc\n"),
        ("a\nb\nc\n", " b\n+b2\n", "a\nb\nb2\nc\n"),
        (TEXT, "@@ def g():\n-    return 1\n+    return 2\n", TEXT[:-2] + "2\n"),
        (
            TEXT,
            "@@\n-    return 1\n+    return 2\n@@\n-    return 1\n+    return 3\n",
            TEXT.replace("1", "2", 1)[:-2] + "3\n",
        ),
        ("x\na\nx\n", "@@\n-x\n+y\n*** End of File\n", "x\na\ny\n"),
        ("  a\t\nb\n", " a\n-b\n+c\n", "  a\t\nc\n"),
        ("a\n", "@@\n+b\n", "a\nb\n"),
        ("a\nb", "@@\n-b\n+c", "a\nc"),
        ("a\n\nb\n", " a\n\n-b\n+c\n", "a\n\nc\n"),
    ],
)
def test_diff_is_applied(text: str, diff: str, expected: str) -> None:
    assert apply_diff(text, diff) == expected


@pytest.mark.parametrize("diff", ["-nowhere\n+b\n", "@@ nowhere\n-a\n", "*** Begin Patch\n", "a\n"])
def test_unmatched_diff_raises(diff: str) -> None:
    with pytest.raises(PatchError):
        apply_diff("x\ny\n", diff)


def test_empty_diff_leaves_text_unchanged() -> None:
    assert apply_diff("a\n", "@@\n") == "a\n"
