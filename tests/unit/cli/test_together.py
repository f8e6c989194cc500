"""`quorate explain A B`: whether two choices go together, from the results of `make compatibility`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from quorate.cli.together import Answer, Compatibility, compatibility
from quorate.cli.verbs import status_of

SMALL = Compatibility(
    axes={"strategy": ["all-reduce", "quorum"], "codec": ["top-k", "dgc"], "loop": ["closure"]},
    reasons=["{0} does not take {1}", "nobody tried {1}"],
    answers={"all-reduce": "", "quorum": "-", "top-k": "w w", "dgc": "w r0 -", "closure": "w s0 w:quorum u1"},
    triples={},
)


def test_an_answer_is_the_same_in_both_orders() -> None:
    assert (
        SMALL.of("dgc", "quorum")
        == SMALL.of("quorum", "dgc")
        == Answer("refused", "quorum does not take dgc", "distribute")
    )
    assert SMALL.of("quorum", "top-k") == Answer("works")
    assert SMALL.of("top-k", "closure") == Answer("works", under="quorum")
    assert SMALL.of("quorum", "closure") == Answer("refused", "quorum does not take closure", "first step")
    assert SMALL.of("closure", "dgc") == Answer("untested", "nobody tried closure", under="all-reduce")
    assert SMALL.of("top-k", "dgc") is None


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (("Quorum", "TopK"), "quorum and top-k: yes.\n\nA short training of a few workers kept all laws"),
        (("quorum", "dgc"), "quorum and dgc: no. quorate.distribute refuses them:\n\n"),
        (("one-bit-adam", "GradScaler"), "one-bit-adam and GradScaler: no. The first step refuses them, before any"),
        (("momentum=average", "atomo"), "momentum=average and atomo under diloco: yes."),
        (("LBFGS", "GradScaler"), "LBFGS and GradScaler: untested.\n\ntorch's GradScaler takes no closure"),
    ],
)
def test_two_names_are_answered(names: tuple[str, str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["explain", *names]) == 0
    assert capsys.readouterr().out.startswith(answer)


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["explain", "dgc", "quorum", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["names"], answer["state"], answer["when"]) == (["dgc", "quorum"], "refused", "distribute")
    assert "dgc" in answer["reason"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("quorum", "ssp"), '"quorum" and "ssp" are both of the kind "strategy", of which a training has one'),
        (("quorum", "top-kk"), 'unknown choice "top-kk"; did you mean "top-k"'),
    ],
)
def test_other_names_are_refused(names: tuple[str, str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["explain", *names]) == 2
    assert sentence in capsys.readouterr().err


def test_torch_is_not_imported() -> None:
    program = (
        "import sys\nfrom quorate.cli.together import explain_pair\nexplain_pair('quorum', 'dgc', as_json=False)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program + "sys.exit('torch' in sys.modules)"], check=False, timeout=60
    )
    assert ended.returncode == 0


def test_every_answer_can_be_read() -> None:
    table = compatibility()
    for place, late in enumerate(table.names):
        assert len(table.answers[late].split()) == place
        for early in table.names[:place]:
            answer = table.of(early, late)
            assert (answer is None) >= (table.axis_of(early) == table.axis_of(late))
            assert answer is None or bool(answer.reason) == (answer.state != "works")
