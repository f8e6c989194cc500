"""`--shrink prune:amount=0.9`: arms whose model becomes smaller while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quorate.cli.listing import registry
from quorate.compare.plan import Arm, Comparison
from quorate.core.errors import ConfigurationError
from quorate.shrink.choices import NONE, choices_from
from quorate.train.combination import Combination
from quorate.train.compatibility import check


def shrunk(base: Comparison, texts: Sequence[str]) -> Comparison:
    """Return `base` with each of its arms for each of the `texts`; of baselines such as ddp, the full model only.

    The baseline is that of `base`, or its only arm, with the first text. Raises `ConfigurationError` for texts that are
    wrong, that need what the plan lacks, or that a strategy cannot be combined with.
    """
    choices = [choice for text in texts for choice in choices_from(text)]
    if base.subject.kind == "script":
        share = next((text for text in texts for choice in choices_from(text) if choice.is_share), None)
        if share is not None and not _reaches(base):
            raise ConfigurationError(
                f'--shrink "{share}" is made at a share of the training, which a script has to say; give a step, such '
                "as at=200, or call quorate.shrink.chosen(optimizer).reached(share) in the script"
            )
    elif base.equal != "examples" and choices:
        raise ConfigurationError("--shrink is for equal work; leave out --seconds and --stop-at-target")
    elif any(not choice.is_share for choice in choices) and _is_dynamic(base):
        raise ConfigurationError("--shrink at a step needs workers with equally many; leave out --data-share dynamic")
    arms = [arm for each in base.arms for arm in _arms(each, texts, is_only=len(base.arms) == 1)]
    return replace(base, arms=tuple(arms))


def _arms(arm: Arm, texts: Sequence[str], *, is_only: bool) -> list[Arm]:
    if arm.strategy in registry("baselines"):
        return [arm.shrunk(NONE, is_baseline=arm.is_baseline)]
    is_baseline = arm.is_baseline or (is_only and len(texts) > 1)
    arms = [arm.shrunk(text, is_baseline=is_baseline and place == 0) for place, text in enumerate(texts)]
    _check(arm, texts)
    return arms


def _check(arm: Arm, texts: Sequence[str]) -> None:
    """Raise `ConfigurationError` where the strategy of an arm does not go with a text."""
    calls = {choice.call for text in texts for choice in choices_from(text)}
    if not calls or arm.strategy is None:
        return
    kind = registry("strategies").get(arm.strategy)
    for call in sorted(calls):
        combination = Combination(
            label=arm.strategy, strategy=kind, prunes=call == "prune", shrinks=f"quorate.shrink.{call}"
        )
        check(combination, "pruning", "shrink")


def _reaches(base: Comparison) -> bool:
    """Whether the script seems to say what share of the training is done."""
    try:
        with open(base.subject.name, encoding="utf-8") as script:
            return ".reached(" in script.read()
    except (OSError, UnicodeDecodeError):
        return False


def _is_dynamic(base: Comparison) -> bool:
    return base.share == "dynamic"
