"""`compatibility.json`: what `make compatibility` has seen, as `quorate explain` and the page read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quorate.cli.together import FILE, Compatibility, compatibility
from tests.compatibility.choices import BASE, choices
from tests.compatibility.laws import Verdict
from tests.compatibility.pairs import Verdicts

LETTERS = {"works": "w", "refused": "r", "untested": "u", "fails": "f"}


def table_of(verdicts: Verdicts, triples: Mapping[str, Any]) -> Compatibility:
    """Return the table of these verdicts, with a reason for each that is no "works"."""
    axes: dict[str, list[str]] = {}
    for choice in choices():
        axes.setdefault(choice.axis, []).append(choice.name)
    reasons: dict[str, int] = {}
    answers = {}
    for place, late in enumerate(choices()):
        codes = []
        for early in choices()[:place]:
            verdict = verdicts.get(frozenset((early.name, late.name)))
            if early.axis == late.axis or verdict is None:
                codes.append("-")
                continue
            code = "s" if verdict.when == "first step" else LETTERS[verdict.state]
            if verdict.state != "works":
                code += str(reasons.setdefault(_template(verdict.words, early.name, late.name), len(reasons)))
            has_host = "strategy" not in (early.axis, late.axis) and verdict.under not in ("", BASE)
            codes.append(f"{code}:{verdict.under}" if has_host and verdict.state == "works" else code)
        answers[late.name] = " ".join(codes)
    return Compatibility(axes, list(reasons), answers, triples)


def _template(words: str, early: str, late: str) -> str:
    """Return a sentence in which the names of both choices are left open, so that few sentences are kept."""
    words = words.replace("{", "{{").replace("}", "}}")
    places = {early: "{0}", late: "{1}"}
    pattern = "|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in sorted(places, key=len, reverse=True))
    return re.sub(pattern, lambda match: places[match[0]], words)


def verdicts_in(table: Compatibility) -> Verdicts:
    """Return the verdicts that a table has."""
    answers = {
        frozenset((early, late)): table.of(early, late)
        for place, late in enumerate(table.names)
        for early in table.names[:place]
    }
    return {
        names: Verdict(answer.state, answer.reason, answer.under, answer.when)
        for names, answer in answers.items()
        if answer
    }  # type: ignore[arg-type]


def kept_verdicts() -> Verdicts:
    """Return the verdicts of the file; none where there is no file yet."""
    return verdicts_in(compatibility()) if FILE.is_file() else {}


def kept_triples() -> Mapping[str, Any]:
    """Return the results of the triples in the file."""
    return compatibility().triples if FILE.is_file() else {}


def write(table: Compatibility) -> None:
    """Write the file, one line for each choice and each reason."""
    parts = [
        f'  "axes": {{\n{_lines(table.axes)}\n  }}',
        f'  "reasons": [\n{_rows(table.reasons)}\n  ]',
        f'  "answers": {{\n{_lines(table.answers)}\n  }}',
        f'  "triples": {json.dumps(table.triples, ensure_ascii=False)}',
    ]
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    compatibility.cache_clear()


def _lines(entries: Mapping[str, Any]) -> str:
    return ",\n".join(f"    {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in entries.items())


def _rows(entries: Any) -> str:
    return ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in entries)
