"""A JSON file read value by value, so that a file of any size takes the memory of its largest value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from sparsona.data.dataset import DataError

STEP = 1 << 20  # characters read at a time
LARGEST = 1 << 24  # characters of one value; what does not end by then is damaged
_DECODE = json.JSONDecoder().raw_decode
_BLANKS = re.compile(r"[ \t\n\r]*")


class JsonStream:
    """A position in a JSON text; objects and arrays are walked through, everything else is decoded."""

    def __init__(self, stream: TextIO, where: str) -> None:
        self.where = where  # what errors name: the file, and the part of it that is being read
        self._stream = stream
        self._text, self._at, self._dropped, self._ended = "", 0, 0, False

    def members(self) -> Iterator[str]:
        """The keys of an object; whoever asks for the next one has read the value of the last."""
        self._expect("{")
        if self._next() == "}":
            self._at += 1
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._error("expected a key")
            self._expect(":")
            yield key
            if self._expect(",}") == "}":
                return

    def items(self) -> Iterator[Any]:
        """The values of an array."""
        self._expect("[")
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            if self._expect(",]") == "]":
                return

    def value(self) -> Any:
        """The next value, whole."""
        self._next()
        while True:
            try:
                value, end = _DECODE(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if self._ended or len(self._text) - self._at > LARGEST:
                    raise self._error("the file ends early" if self._ended else "expected a value") from error
            else:
                if self._text[end:].strip(".eE+-") or self._ended:  # a number at the end may go on
                    self._at = end
                    return value
            self._more()

    def end(self) -> None:
        """Raise DataError if anything follows."""
        if self._next():
            raise self._error("expected the end of the file")

    def _next(self) -> str:
        """The next character that is not blank, without passing it; empty at the end."""
        while True:
            match = _BLANKS.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._more()

    def _expect(self, characters: str) -> str:
        """Pass the next character, which must be one of these."""
        character = self._next()
        if not character or character not in characters:
            raise self._error(f"expected {' or '.join(characters)}" if character else "the file ends early")
        self._at += 1
        return character

    def _more(self) -> None:
        """Drop what was passed and read on."""
        try:
            more = self._stream.read(STEP)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.where}: cannot be read as UTF-8 text: {error}") from error
        self._dropped += self._at
        self._text, self._at, self._ended = self._text[self._at :] + more, 0, not more

    def _error(self, what: str) -> DataError:
        return DataError(f"{self.where}: not valid JSON at character {self._dropped + self._at:,}: {what}")
