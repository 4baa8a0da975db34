"""Text for error messages: what came from elsewhere made safe to show, and names that may have been meant."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

SUGGESTIONS = 5  # names that an error message has at most


def one_line(text: object) -> str:
    """Text fit for a log or a terminal: one line of at most 500 characters, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:500]


def meant(word: str, names: Iterable[str]) -> str:
    """The names closest to a word, five at most, as the end of an error message; nothing if none is close."""
    names = sorted(names)
    same = [name for name in names if name.lower() == word.lower()]
    close = same or difflib.get_close_matches(word, names, SUGGESTIONS, 0.5)
    ratios = [difflib.SequenceMatcher(None, name, word).ratio() for name in close]  # best first
    likely = [name for name, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - 0.05]
    quoted = [json.dumps(name, ensure_ascii=False) for name in likely]
    return f"; did you mean {' or '.join(filter(None, [', '.join(quoted[:-1]), quoted[-1]]))}?" if quoted else ""


def nearest(word: str, names: Iterable[str]) -> str:
    """The names closest to a word, or all if they are few, as the end of an error message: five at most."""
    names = sorted(names)
    if close := meant(word, names):
        return close
    more = f" and {len(names) - SUGGESTIONS} more" if len(names) > SUGGESTIONS else ""
    return f"; allowed: {', '.join(names[:SUGGESTIONS])}{more}"
