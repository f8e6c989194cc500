"""Settings are taken strictly, and an error says what is known or wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from quorate.core.errors import ConfigurationError
from quorate.core.settings import settings_for


class Codec:
    """A class that pydantic does not know."""


@dataclass(frozen=True, kw_only=True)
class Quorum:
    wait_for: int | float | Literal["all", "majority"] = "majority"
    clip_norm: float | None = None
    sizes: tuple[int, ...] = ()
    codec: Codec | None = None
    overlap: bool = False
    derived: int = field(default=0, init=False)


@dataclass(frozen=True, kw_only=True)
class Described:
    period: Annotated[int, {"unit": "steps"}] = 1


def test_types_may_have_metadata_that_no_table_takes_as_a_key() -> None:
    assert settings_for(Described, {"period": 3}) == {"period": 3}


CODEC = Codec()


@pytest.mark.parametrize(
    ("raw", "settings"),
    [
        ({}, {}),
        ({"wait_for": 1}, {"wait_for": 1}),
        ({"wait_for": 0.5}, {"wait_for": 0.5}),
        ({"wait_for": "all", "overlap": True}, {"wait_for": "all", "overlap": True}),
        ({"clip_norm": 3}, {"clip_norm": 3.0}),
        ({"clip_norm": None}, {"clip_norm": None}),
        ({"sizes": [1, 2]}, {"sizes": (1, 2)}),
        ({"codec": CODEC}, {"codec": CODEC}),
    ],
)
def test_what_fits_its_field_is_taken(raw: dict[str, object], settings: dict[str, object]) -> None:
    taken = settings_for(Quorum, raw)
    assert taken == settings
    assert {name: type(value) for name, value in taken.items()} == {
        name: type(value) for name, value in settings.items()
    }
    Quorum(**taken)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("wait_for", "most", "'all' or 'majority'"),
        ("wait_for", "1", "it should be a number or 'all' or 'majority'"),
        ("overlap", 1, "true or false"),
        ("clip_norm", "1.0", "a number"),
        ("clip_norm", True, "a number"),
        ("sizes", [1, "2"], "a list"),
        ("codec", "top-k", "an instance of Codec"),
    ],
)
def test_what_does_not_is_refused_with_what_is_wanted(name: str, value: object, wanted: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        settings_for(Quorum, {name: value})
    assert str(error.value).startswith(f"the setting {name} of Quorum is {value!r}; it should be ")
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["wait_fro", "derived"])
def test_an_unknown_setting_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Known: clip_norm, codec, overlap, sizes, wait_for") as error:
        settings_for(Quorum, {name: 1})
    assert ('did you mean "wait_for"?' in str(error.value)) == (name == "wait_fro")
