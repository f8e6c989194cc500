"""Tables and paragraphs in every width: lines fit, and numbers are whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quorate.cli import bench
from quorate.cli.compare.results import show
from quorate.cli.doctor import data
from quorate.cli.doctor.findings import ok, warn
from quorate.cli.doctor.memory import Line, in_words
from quorate.cli.doctor.verb import _show
from quorate.cli.listing import FAMILIES, registry
from quorate.cli.tables import paragraphs, table, terminal_width, text_table
from quorate.cli.tune import TuneOptions, _tell
from quorate.cli.verbs import status_of
from quorate.records.choice_rows import Tuned
from quorate.report.summary import summarize
from tests.support.made_records import make_comparison, make_run, make_scaled_comparison

QUANTITY = re.compile(r"\d[\d,.]*(?: (?:h|min) \d+)?(?: (?:[kMG]?B|[mµ]?s|min|h)\b|[%×])?")
GPT = "gpt:hidden=512,layers=8,heads=8,sequence=128,vocabulary=1000"
CLUSTER = ("-n", "4", "--memory", "8GB", "--bandwidth", "10Gbit", "--flops", "1T", "--batch", "16")
HELD = {
    "parameters": 6_590_000, "gradients": 659, "optimizer": 13_200_000, "gathered": 3, "exchanged": 12,
    "activations": 128, "host": 7_000,
}  # fmt: skip


def verb(*words: str) -> Callable[[Path], None]:
    def carry_out(folder: Path) -> None:
        assert status_of(words) == 0

    return carry_out


def comparison(make: Callable[[Path], Path]) -> Callable[[Path], None]:
    def show_it(folder: Path) -> None:
        made = make(folder / "made")
        (made / "summary.json").write_text(summarize(made).model_dump_json())
        show(made, Path("index.html"), as_json=False)

    return show_it


def memory(folder: Path) -> None:
    layouts = [
        Line(
            zero=zero, workers=workers, held=HELD, total=26_500_000, by_formula=1.0, numbers_sent=1_648_643 * workers,
            fits=True,
        )
        for zero, workers in ((0, 1), (3, 16))
    ]  # fmt: skip
    answer = {
        "memory": {"sizes": [{"numbers": 1_648_643, "is_trained": True}]}, "precision": None, "model": "Net",
        "device": "cuda", "optimizer": "Adam", "blocks": "2 blocks of Block (0 to 1), and the rest as one piece",
        "activations": {"": 102_000},
    }  # fmt: skip
    print("\n".join(in_words(answer, layouts, 24_000_000_000)))


def findings(folder: Path) -> None:
    here = {
        "cores": ok("2 cores, for 2 workers with 1 thread each"),
        "memory": warn("7.8 GB of 16.0 GB " * 9, "close 3"),
    }
    of_hosts = {f"bandwidth first > second-{n}.cluster": ok("9.41 Gbit/s after 12.5 ms, over 3 streams") for n in "12"}
    _show(here | of_hosts, "trainings can run here")


def packed(folder: Path) -> None:
    tensors = {f"encoder.layers.{n}.self_attention.projection.weight": 0.1 * torch.arange(40_000.0) for n in range(2)}
    save_file(tensors, "model.safetensors")
    verb("pack", "model.safetensors")(folder)


def tuned(folder: Path) -> None:
    tried = {
        "words": "parts of 16.8 MB, the first of 1.05 MB, in the order of the backward pass", "parts": 12,
        "predicted": 0.0123, "measured": 0.0119, "pairs": 24, "speed_up": 1.123, "low": 1.045, "high": 1.201,
        "taken": True,
    }  # fmt: skip
    row = Tuned(
        step=180, time=9.5, optimizer="0", steps=180, latency=1e-4, gap=1e-5, bandwidth=1e9, skew=0.001, ready=0.02,
        predicted=0.0145, measured=0.0139, parts=24, refused=3, tried=[tried], settings={"part_bytes": 2**24},
        why=["The network is slow.", "Larger parts are faster.", "They are taken."],
    )  # fmt: skip
    _tell(row, TuneOptions(script="train.py"))


def loading(folder: Path) -> None:
    trials = [{"processes": n, "rate": 1_234.5 * (n + 1), "error": None} for n in (0, 1, 2, 4)]
    answer = {
        "steps": 100, "seconds": 0.04, "waited": 0.03, "busy": 0.01, "loader": True, "processes": 0,
        "batch_bytes": 1_204_224, "trials": trials,
    }  # fmt: skip
    print("\n".join(data.in_words("train.py", [answer, answer])))


def rates(folder: Path) -> None:
    measured = [
        {
            "operation": "all-reduce", "way": way, "size": 4**power, "seconds": 1e-6 * 4**power,
            "algorithm_bandwidth": 43.6e9, "bus_bandwidth": 76.4e9,
        }
        for way in ("quorate", "gloo") for power in (5, 15)
    ]  # fmt: skip
    about = {"workers": 4, "network": "shared memory", "backend": "gloo", "device": "cpu"}
    print("\n".join(bench.in_words(about, measured)))


SHOWN: dict[str, Callable[[Path], None]] = {
    "simulate": verb("simulate", "--strategy", "quorum:wait_for=2", "-n", "4,16", "--network", "50us:10Gbit",
                     "--network", "5ms:1Gbit", "--steps", "20", "--imbalance", "one-of:20ms", "--name", "one"),
    "simulate --failures": verb("simulate", "--failures", "mtbf=10d,repair=1h,restart=5min", "--seconds", "2d", "-n",
                                "10,1000", "--name", "one"),
    "simulate --records": verb("simulate", "--records"),
    "plan": verb("plan", *CLUSTER, GPT),
    "compare": comparison(lambda folder: make_comparison(folder, seeds=(0, 1, 2), fails=False, steps=30)),
    "compare --scale": comparison(make_scaled_comparison),
    "bench": rates,
    "doctor": findings,
    "doctor --data": loading,
    "doctor --memory": memory,
    "list": verb("list"),
    "pack": packed,
    "tune": tuned,
    "watch": lambda folder: verb("watch", "--text", str(make_run(folder / "run", steps=40)))(folder),
    "explain topology": verb("explain", "random:degree=3", "-n", "12"),
    "explain reducer": verb("explain", "halving-doubling", "-n", "6"),
}  # fmt: skip


def printed(
    shown: Callable[[Path], None],
    columns: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    place = folder / str(columns)
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown(Path())
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", SHOWN)
def test_lines_fit_and_numbers_are_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = "\n".join(printed(SHOWN[name], 1000, tmp_path, monkeypatch, capsys))
    quantities = set(QUANTITY.findall(wide))
    assert quantities
    for columns in (80, 60):
        lines = printed(SHOWN[name], columns, tmp_path, monkeypatch, capsys)
        too_long = [line for line in lines if len(line) > columns and " " in line.strip().partition(": ")[2]]
        assert not too_long
        assert {quantity for quantity in quantities if not any(quantity in line for line in lines)} == set()
        assert "…" not in "".join(lines)


@pytest.mark.parametrize("name", sorted({name for family in FAMILIES for name in registry(family)}))
def test_cards_fit(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert status_of(["explain", name]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= columns


HEADS = ("strategy", "of no-wait", "speed-up", "time to 0.9")
ROWS = [
    ("all-reduce (baseline)", "67%", "1.00×", "12 min 5 s, 1 of 3 missed"),
    ("eager-solo", "72%", "1.31× (1.20× to 1.42×)", "9 min 5 s"),
]


def test_a_table_where_there_is_room() -> None:
    assert table(HEADS, ROWS, 90) == [
        "strategy               of no-wait                speed-up                time to 0.9",
        "─" * 84,
        "all-reduce (baseline)         67%                   1.00×  12 min 5 s, 1 of 3 missed",
        "eager-solo                    72%  1.31× (1.20× to 1.42×)                  9 min 5 s",
    ]


def test_heads_and_remarks_take_several_lines_where_there_is_less() -> None:
    assert table(HEADS, ROWS, 60) == [
        "                 of",
        "strategy    no-wait          speed-up    time to 0.9",
        "─" * 52,
        "all-reduce      67%             1.00×    12 min 5 s,",
        "(baseline)                             1 of 3 missed",
        "eager-solo      72%             1.31×      9 min 5 s",
        "                     (1.20× to 1.42×)",
    ]


def test_parts_repeat_the_names_of_rows() -> None:
    assert table(HEADS, ROWS, 40) == [
        "                 of",
        "strategy    no-wait          speed-up",
        "─" * 37,
        "all-reduce      67%             1.00×",
        "(baseline)",
        "eager-solo      72%             1.31×",
        "                     (1.20× to 1.42×)",
        "",
        "strategy      time to 0.9",
        "─" * 25,
        "all-reduce    12 min 5 s,",
        "(baseline)  1 of 3 missed",
        "eager-solo      9 min 5 s",
    ]


def test_rows_become_records_where_nothing_else_fits() -> None:
    assert table(HEADS, ROWS, 26) == [
        "all-reduce (baseline)",
        "  of no-wait: 67%",
        "  speed-up: 1.00×",
        "  time to 0.9: 12 min 5 s,",
        "    1 of 3 missed",
        "",
        "eager-solo",
        "  of no-wait: 72%",
        "  speed-up: 1.31× (1.20×",
        "    to 1.42×)",
        "  time to 0.9: 9 min 5 s",
    ]


def test_rows_become_records_rather_than_many_tables() -> None:
    heads = ["name", *(f"column {letter}" for letter in "abcdefgh")]
    row = ["x", *(f"1,234,56{digit}" for digit in range(8))]
    assert sum(line.startswith("name") for line in table(heads, [row], 37)) == 3
    assert table(heads, [row], 30)[:2] == ["x", "  column a: 1,234,560"]


def test_text_goes_below_its_row_in_a_narrow_terminal() -> None:
    rows = [("hierarchical-local-sgd", "Means within groups of close workers.")]
    assert list(text_table(rows, 40)) == [
        "  hierarchical-local-sgd",
        "      Means within groups of close",
        "      workers.",
    ]


def test_no_line_ends_in_a_quantity_or_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert list(paragraphs("The other workers all-reduce")) == ["The other workers", "all-reduce"]
    assert list(paragraphs("it takes longer by about 12 min 5 s (P - 1)")) == [
        "it takes longer by about", "  12 min 5 s (P - 1)"
    ]  # fmt: skip


def test_a_pipe_is_80_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    assert terminal_width() == 80
    monkeypatch.setenv("COLUMNS", "61")
    assert terminal_width() == 61
