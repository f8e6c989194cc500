"""The expected type of a value, in the user's words in place of those of the library that checks types."""

from __future__ import annotations

import re

_WORDS = (
    (r"a valid integer(, (unable to parse|got a number).*)?", "a whole number"),
    (r"a valid number(, unable to parse.*)?", "a number"),
    (r"a valid boolean(, unable to interpret input)?", "true or false"),
    (r"a valid string", "text"),
    (r"a valid (list|tuple|sequence)", "a list"),
    (r"a valid (dictionary|dict)", "a table"),
    (r"greater than or equal to (\S+)", r"at least \1"),
    (r"less than or equal to (\S+)", r"at most \1"),
    (r"greater than (\S+)", r"above \1"),
    (r"less than (\S+)", r"below \1"),
)


def wanted_in_words(message: str) -> str:
    """Return "a whole number" for "Input should be a valid integer"; other messages lose their beginning."""
    type_in_words = message.removeprefix("Value error, ").removeprefix("Input should be ")
    for pattern, words in _WORDS:
        if (match := re.fullmatch(pattern, type_in_words)) is not None:
            return match.expand(words)
    return type_in_words
