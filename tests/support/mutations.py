"""Wrong input by the hundred: command lines, environments and record files, altered at random from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

JUNK: tuple[str, ...] = (
    "", " ", "0", "-0", "-1", "1.5", "nan", "-inf", "1e999", "9" * 30, "0x10", "٣", "²", "true", "None", "null",
    "a", "a=b", "=", ":", ",", ",,", "x", "x2", "+", "ms", "-5ms", "1e400s", "[", "[" * 3000, "{}", "{'a': 1}", '"',
    "'", "\\", "\n", "\r\n", "\t", "é", "日本", "\udcff", "*", "~", "/", "..", "../..", "/dev/null", "/dev/full",
    "/proc/self/mem", "a" * 300, "a" * 70000, "all-reduce", "digits", "ddp", "quorum", "-n", "--", "--help", "-m",
    "rank:-1:x2", "rank:0", "one-of:", "0-of:5ms", "99-of:5ms", "one-of:5ms+", "rank:9:5ms", "lognormal:1ms:x",
    "lognormal:1ms:1e9", "normal:nan:1ms", "uniform:5ms:1ms", "trace:", "trace:nowhere", "trace:.", "trace:/dev/null",
    "constant:", "50us/token", "1.2.3s", "10Gb", "3,", "1,1", "5,x", "1" * 5000,
)  # fmt: skip
"""Values that are wrong nearly everywhere."""

RUN: tuple[tuple[str, ...], ...] = (
    ("run", "-n", "2", "--strategy", "quorum", "--set", "wait_for=1", "train.py", "--lr", "3"),
    ("run", "--virtual", "3", "--seed", "1", "--compute", "constant:1ms", "--latency", "5us", "train.py"),
    ("run", "--virtual", "3", "--bandwidth", "1GB", "--data-share", "dynamic", "--seconds", "2", "train.py"),
    ("run", "-n", "3", "--imbalance", "one-of:5ms", "--min-step-time", "2ms", "--name", "here", "train.py"),
    ("run", "-m", "train"),
    ("run", "--config", "run.toml", "train.py"),
    ("run", "--resume", "done", "--seed", "2"),
    ("run", "-n", "2", "--print-config", "train.py"),
    ("run", "-n", "2", "--restart", "1", "--max-joins", "2", "train.py"),
    ("run", "-n", "2", "--chaos", "1", "--failures", "mtbf=9s,stop=0.2:1s,slow=0.1:x2:1s,burst=0.1:2", "train.py"),
)
"""Right command lines of `quorate run`."""

COMPARE: tuple[tuple[str, ...], ...] = (
    ("compare", "least-squares", "-n", "2", "--strategy", "all-reduce", "--strategy", "quorum:wait_for=1"),
    ("compare", "-n", "2", "--baseline", "ddp", "--seeds", "1,2", "--epochs", "1", "--batch", "4", "least-squares"),
    ("compare", "--virtual", "2", "--seeds", "2", "--tune-lr=0.5,1", "--workload-set", "features=3", "hyperplane"),
    ("compare", "-n", "2", "--metric", "loss", "--lower", "--target", "0.5", "train.py", "--lr", "1"),
    ("compare", "-n", "2", "--seconds", "2", "--timeout", "9s", "--imbalance", "rank:1:x2", "digits"),
    ("compare", "--virtual", "2", "--evaluations", "2", "--stop-at-target", "--target", "1", "--name", "c", "digits"),
    ("compare", "--continue", "done"),
    ("compare", "--config", "compare.toml", "least-squares"),
)
"""Right command lines of `quorate compare`."""

OTHERS: tuple[tuple[str, ...], ...] = (
    ("list", "strategies"),
    ("explain", "quorum", "--json"),
    ("report", "done", "--json"),
    ("trace", "done", "--output", "t.json"),
    ("join", "done", "-n", "2", "--timeout", "5s"),
)
"""Right command lines of verbs that start nothing."""

ENVIRONMENT: tuple[str, ...] = (
    "QUORATE_STRATEGY", "QUORATE_SETTINGS", "QUORATE_SEED", "QUORATE_IMBALANCE", "QUORATE_MIN_STEP_TIME",
    "QUORATE_DATA_SHARE", "QUORATE_SECONDS", "QUORATE_LEARNING_RATE_FACTOR", "QUORATE_FAILURES", "QUORATE_CHAOS",
)  # fmt: skip
"""Variables that say what a launcher would."""


def command_line(draw: random.Random, bases: Sequence[Sequence[str]]) -> list[str]:
    """One of `bases`, altered in one to three places. No null bytes: no system passes those on."""
    words = list(draw.choice(bases))
    for _ in range(draw.randint(1, 3)):
        draw.choice(_ALTERATIONS)(draw, words, bases)
    return words


def _replace(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    if len(words) > 1:
        words[draw.randrange(1, len(words))] = draw.choice(JUNK)


def _replace_value(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    """What stands after an option."""
    places = [place + 1 for place, word in enumerate(words[:-1]) if word.startswith("-")]
    if places:
        words[draw.choice(places)] = draw.choice(JUNK)


def _insert(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    words.insert(draw.randint(1, len(words)), draw.choice(JUNK))


def _drop(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    if len(words) > 1:
        del words[draw.randrange(1, len(words))]


def _swap(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    if len(words) > 2:
        i, j = draw.sample(range(1, len(words)), 2)
        words[i], words[j] = words[j], words[i]


def _borrow(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    """An option with its value, from another command line, perhaps of another verb."""
    other = draw.choice(bases)
    places = [place for place, word in enumerate(other) if word.startswith("-")]
    if places:
        place = draw.choice(places)
        words[1:1] = other[place : place + 2]


def _retype(draw: random.Random, words: list[str], bases: Sequence[Sequence[str]]) -> None:
    """A slip of the finger in one word."""
    if len(words) < 2:
        return
    place = draw.randrange(1, len(words))
    word = words[place]
    at = draw.randint(0, len(word))
    kept = word[at + 1 :] if draw.random() < 0.5 else word[at:]
    words[place] = word[:at] + draw.choice(("", "x", "0", "-", "=", ":", ",", " ", "é", ".", "e9")) + kept


Alteration = Callable[[random.Random, list[str], Sequence[Sequence[str]]], None]
_ALTERATIONS: tuple[Alteration, ...] = (
    _replace,
    _replace_value,
    _replace_value,
    _insert,
    _drop,
    _swap,
    _borrow,
    _retype,
    _retype,
)


def altered_bytes(draw: random.Random, data: bytes) -> bytes:
    """`data` cut off, with bits flipped, with a piece left out or doubled, or something else entirely."""
    kind = draw.randrange(6)
    at = draw.randint(0, len(data))
    if kind == 0:
        return data[:at]
    if kind == 1 and data:
        flipped = bytearray(data)
        for _ in range(draw.randint(1, 8)):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    if kind == 2:
        return data[:at] + data[min(len(data), at + draw.randint(1, 200)) :]
    if kind == 3:
        return data[:at] + data[max(0, at - 100) :]
    if kind == 4:
        return draw.choice((b"", b"\0" * 100, b"[]", b"[" * 100_000, b"null", b'"a"', b"\xff\xfe", b"{}", b"1e999"))
    return data[:at] + draw.randbytes(draw.randint(1, 60)) + data[at:]


def altered_json(draw: random.Random, text: str) -> str:
    """JSON lines (or one object), one value of which is another one, or missing."""
    lines = text.splitlines()
    is_lines = all(line.startswith("{") and line.endswith("}") for line in lines)
    place = draw.randrange(len(lines)) if is_lines else 0
    value: Any = json.loads(lines[place] if is_lines else text)
    _alter(draw, value)
    if not is_lines:
        return json.dumps(value)
    lines[place] = json.dumps(value)
    return "\n".join(lines) + "\n"


_VALUES: tuple[object, ...] = (
    None, True, -1, 0, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "a", "../..", [], [1], [[]], {}, {"a": 1},
)  # fmt: skip


def _alter(draw: random.Random, value: Any) -> None:
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and draw.random() < 0.7:
            value = value[key]
            continue
        if draw.random() < 0.2:
            del value[key]
        else:
            value[key] = draw.choice(_VALUES)
        return


def alter_file(draw: random.Random, path: Path) -> None:
    """Another content for the file, or none: gone, or a folder in its place."""
    data = path.read_bytes()
    kind = draw.random()
    if kind < 0.05:
        path.unlink()
    elif kind < 0.1:
        path.unlink()
        path.mkdir()
    elif kind < 0.5:
        path.write_bytes(altered_bytes(draw, data))
    else:
        with suppress(ValueError, RecursionError, TypeError):  # altered before
            path.write_text(altered_json(draw, data.decode()), encoding="utf-8")
