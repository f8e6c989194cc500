"""The response to a failure, read from a line of text."""

from __future__ import annotations

import pytest

from quorate.core.errors import ConfigurationError
from quorate.simulation.failing.recovery import FORMS, Recovery, recovery_from


def test_every_key_is_read() -> None:
    text = "detect=4s,reshard=8s,join=2s,slice=64,checkpoint=10min,save=3s,spare=1min,inside=restart,during=again"
    assert recovery_from(text) == Recovery(
        detect=4.0, reshard=8.0, join=2.0, slice=64, checkpoint=600.0, save=3.0, spare=60.0, inside="restart",
        during="again", text=text,
    )  # fmt: skip
    assert recovery_from("checkpoint=auto").checkpoint is None
    assert recovery_from(FORMS.partition(" (")[0]).slice == 64
    assert recovery_from("reshard=7s").joining == 7.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("detect", '"detect" in "detect" is not a part of a recovery; write detect=10s,'),
        ("repair=3s", '"repair=3s" in "repair=3s" is not a part of a recovery'),
        ("save=1s,save=2s", 'save appears twice in "save=1s,save=2s"'),
        ("slice=0", "a slice has 0 workers; it must be 1 or more"),
        ("slice=x", '"slice=x" in "slice=x" is not a number of workers'),
        ("checkpoint=0s", "checkpoint is 0 s; it must be auto, or above 0"),
        ("inside=both", 'inside is "both"; it must be elastic or restart'),
        ("during=no", 'during is "no"; it must be absorb or again'),
        ("detect=20", "has no unit: 20ms or 20s"),
    ],
)
def test_wrong_text_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        recovery_from(text)
    assert sentence in str(raised.value)
