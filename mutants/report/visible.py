"""Texts that may be hostile (details of mutants, names of files, reasons) as texts that show what is in them."""

import re

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Controls, marks that turn the direction of text, and characters without width, as `\\u202e`.

    Newlines and tabs stay. What this gives can be encoded as UTF-8.
    """
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str, most: int = 200) -> str:
    """A visible text on one line, cut to at most `most` characters."""
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
