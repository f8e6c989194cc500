"""Names as users and papers write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quorate.cli.names import ELSEWHERE, PUBLISHED, folded, known_as, setting_known_as
from quorate.cli.options import strategy_from
from quorate.cli.verbs import status_of

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "which-strategy.md"


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("DDP", ("ddp", {})),
        ("eager_solo", ("eager-solo", {})),
        ("DiLoCo:sync_every=3", ("diloco", {"sync_every": 3})),
        ("FedAdam", ("fed-opt", {"server": "adam"})),
        ("FedAdam:server=yogi", ("fed-opt", {"server": "yogi"})),
        ("Adasum", ("all-reduce", {"reduce": "adasum"})),
        ("all-reduce:compress=TopK", ("all-reduce", {"compress": "top-k"})),
        ("d-psgd:topology=Ring", ("d-psgd", {"topology": "ring"})),
        ("d-psgd:topology=Random:degree=3", ("d-psgd", {"topology": "random:degree=3"})),
        ("Robust:reduce=TrimmedMean", ("robust", {"reduce": "trimmed-mean"})),
        ("not-there", ("not-there", {})),
    ],
)
def test_a_strategy_is_known_in_other_spellings(text: str, strategy: tuple[str, dict[str, object]]) -> None:
    assert strategy_from(text) == strategy


def test_other_settings_are_left_alone() -> None:
    assert setting_known_as("outer", "Adam") == "Adam"
    assert setting_known_as("compress", 3) == 3
    assert known_as("Digits", "workloads") == "digits"
    assert known_as("FedAdam", "workloads") == "FedAdam"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain", "fsdp"], 'unknown name "fsdp": a model in shards is --zero 1, 2 or 3, or --mesh shards=S'),
        (["explain", "ZeRO"], 'unknown name "ZeRO": a model in shards is --zero'),
        (["run", "--strategy", "pipeline", "train.py"], 'unknown strategy "pipeline": a model in stages is --mesh'),
        (["run", "--strategy", "eager_sgd", "train.py"], 'unknown strategy "eager_sgd": eager-SGD is eager-solo or '),
        (["run", "--strategy", "eager", "train.py"], 'unknown strategy "eager"; did you mean "eager-solo" or '),
        (["compare", "-n", "2", "digits", "--strategy", "zzz"], 'unknown strategy "zzz"; see quorate list strategies'),
        (["simulate", "--strategy", "quoron"], 'unknown strategy "quoron"; did you mean "quorum"? See quorate list st'),
    ],
)
def test_what_is_no_name_is_answered(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert status_of(words) == 2
    assert capsys.readouterr().err.startswith(f"quorate: {sentence}")


def test_the_card_of_a_published_name_is_that_of_its_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    for name, card in (("OpenDiLoCo", "diloco"), ("DDP", "ddp"), ("PowerSGD", "power-sgd")):
        assert status_of(["explain", name]) == 0
        assert capsys.readouterr().out.startswith(f"{card} (")


def test_published_names_stand_on_the_page_and_lead_where_it_says() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Published names")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    for name, use in PUBLISHED.items():
        uses = [row for row in rows if folded(name) in map(folded, re.split(r"[,;:()]| and ", row[0]))]
        assert uses, f"{name} is not on the page"
        assert any(use.partition(":")[0] in re.findall(r"`([\w-]+)", row[1]) for row in uses), name
        assert known_as(name, "strategies") == use
    assert not {folded(name) for name in PUBLISHED} & {folded(name) for name in ELSEWHERE}
