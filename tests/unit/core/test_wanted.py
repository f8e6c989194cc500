"""What a value should have been, in plain words."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from quorate.core.settings import wanted_in_words


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "x", "a whole number"),
        (int, 1.5, "a whole number"),
        (float, "x", "a number"),
        (bool, "x", "true or false"),
        (str, 1, "text"),
        (list[int], 1, "a list"),
        (tuple[int, ...], 1, "a list"),
        (dict[str, int], 1, "a table"),
    ],
)
def test_the_words_of_the_library_are_ours(kind: type, value: object, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(kind).validate_python(value)
    assert wanted_in_words(error.value.errors()[0]["msg"]) == words


@pytest.mark.parametrize(
    ("limits", "value", "words"),
    [({"ge": 1}, 0, "at least 1"), ({"le": 1}, 2, "at most 1"), ({"gt": 0}, 0, "above 0"), ({"lt": 5}, 5, "below 5")],
)
def test_limits(limits: dict[str, int], value: int, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(Annotated[int, Field(**limits)]).validate_python(value)
    assert wanted_in_words(error.value.errors()[0]["msg"]) == words


def test_others_lose_their_beginning() -> None:
    assert wanted_in_words("Input should be 'all' or 'majority'") == "'all' or 'majority'"
    assert wanted_in_words("Value error, it must be a factor (at least 0)") == "it must be a factor (at least 0)"
