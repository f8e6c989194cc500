"""A comparison, and a run alone, from records to `summary.json`."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import held
from quorate.records.records import records_of
from quorate.report.page import page
from quorate.report.reading.planned import planned_in
from quorate.report.schema import ArmSummary, Estimate, Metric, Summary
from quorate.report.summary import summarize, summary_type, write_summary
from quorate.report.topics.verdict import coding_of, verdict_of
from tests.support.made_records import KILLED, make_comparison, make_run
from tests.support.parsed_pages import parsed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_comparison(tmp_path_factory.mktemp("made") / "c")


@pytest.fixture(scope="module")
def summary(made: Path) -> Summary:
    return summarize(made)


def arm(summary: Summary, name: str) -> ArmSummary:
    return next(arm_summary for arm_summary in summary.arms if arm_summary.name == name)


def changed(folder: Path, change: Callable[[dict[str, Any]], object], name: str = "compare.json") -> Path:
    """The same folder with something changed in one of its JSON files."""
    about = json.loads((folder / name).read_text())
    change(about)
    (folder / name).write_text(json.dumps(about))
    return folder


def test_what_was_asked_for(summary: Summary) -> None:
    assert [side.name for side in summary.arms] == ["ddp", "all-reduce", "quorum"]
    assert (summary.title, summary.workers, summary.world) == ("stdlib-functions on 4 workers", 4, "real")
    assert (summary.baseline, summary.target, summary.imbalance) == ("ddp", 0.62, "rank:3:15ms")
    assert summary.metric is not None and summary.metric.name == "top1"
    assert arm(summary, "quorum").settings == {"wait_for": 2}
    assert arm(summary, "quorum").learning_rate_factor == 0.5


def test_a_run_that_failed_is_named_and_left_out(summary: Summary) -> None:
    failed = arm(summary, "all-reduce")
    assert [(run.seed, run.folder, run.status) for run in failed.runs] == [
        (0, "all-reduce/seed-0", 0),
        (1, "all-reduce/seed-1", 0),
        (2, "all-reduce/seed-2", 1),
    ]
    assert failed.runs[2].why == KILLED
    assert failed.quality is not None and len(failed.quality.values) == 2
    assert [curve.seed for curve in failed.curves] == [0, 1] == [curve.seed for curve in failed.losses]
    assert failed.target_reached == (2, 3)
    assert f"all-reduce, seed 2, failed with status 1: {KILLED}; it is left out" in summary.warnings
    assert "all-reduce reached the target, top1 0.62, in 2 of 3 runs" in summary.warnings


def test_arms_are_held_against_the_baseline_seed_by_seed(summary: Summary) -> None:
    base, same, other = summary.arms
    assert base.speedup is None and base.differences == {}
    assert same.speedup is not None and same.differences["examples_per_second"] == "no significant difference"
    assert other.speedup is not None and other.differences["examples_per_second"] == "better"
    rates = [side.examples_per_second.values for side in (base, other) if side.examples_per_second is not None]
    assert other.speedup.values == tuple(own / theirs for theirs, own in zip(*rates, strict=True))
    assert other.speedup.low is not None and other.speedup.low > 1.4
    assert other.target_speedup is not None and other.target_speedup.mean > 1.4
    assert other.differences["quality"] == "worse" and other.differences["time_to_target"] == "better"
    assert other.differences["bytes_per_step"] == "no significant difference"


def test_the_verdict_claims_what_is_shown(summary: Summary) -> None:
    other, faster = summary.verdict.splitlines()  # which is worse
    assert "\n" not in other
    speed = r"quorum: 1\.\d\d times as fast as ddp to top1 0\.62 \(1\.\d\d to 1\.\d\d, 3 seeds\)"
    assert re.fullmatch(rf"{speed}\. Quality: worse, top1 0\.\d+ against 0\.\d+\.", faster)
    assert re.fullmatch(
        r"all-reduce: 1\.\d\d times as fast as ddp \(1\.\d\d and 1\.\d\d, 2 seeds\)\. The target, top1 0\.62, "
        r"is reached in 2 of 3 runs\. Quality: no significant difference, top1 0\.685 against 0\.689 "
        r"\(seeds 0 and 1 alone\)\.",
        other,
    )


def test_of_many_arms_the_best_and_the_worst_are_told(made: Path, summary: Summary) -> None:
    base, same, other = summary.arms
    assert other.speedup is not None
    speeds = [other.speedup.model_copy(update={"mean": 1.5 + number}) for number in range(5)]
    change: dict[str, Any] = {"target_speedup": None, "differences": {}}
    more = [other.model_copy(update={**change, "name": f"q{n}", "speedup": speed}) for n, speed in enumerate(speeds)]
    lines = verdict_of(planned_in(made), [base, same, *more], {}).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "Best of 6, q4", "Worst of 6, all-reduce", "4 arms more are in the table.",
    ]  # fmt: skip
    assert verdict_of(planned_in(made), [base, same, *more[:3]], {}).splitlines()[2] == "2 arms more are in the table."
    assert len(verdict_of(planned_in(made), [base, same, *more[:2]], {}).splitlines()) == 3, (
        "four arms have a line each"
    )


def test_everyone_who_is_slow_is_found(summary: Summary) -> None:
    arrivals = [side.arrival for side in summary.arms]
    assert [None if arrival is None else (arrival.seed, arrival.slow_rank) for arrival in arrivals] == [(0, 3)] * 3
    assert [len(side.timeline) for side in summary.arms] == [4, 4, 4]


def test_rounds_are_told_of_where_there_are_any(summary: Summary) -> None:
    assert [side.rounds is None for side in summary.arms] == [True, True, False]
    assert [bool(side.marks) for side in summary.arms] == [False, False, True]
    rounds = arm(summary, "quorum").rounds
    assert rounds is not None
    assert [len(estimate.values) for estimate in (rounds.count, rounds.fresh_share) if estimate is not None] == [3, 3]
    assert len(rounds.contributors) == 5 and rounds.contributors[0] == 0
    assert rounds.contributors_mean == pytest.approx(
        sum(number * count for number, count in enumerate(rounds.contributors)) / sum(rounds.contributors)
    )
    assert sum(number * count for number, count in enumerate(rounds.contributors)) <= sum(rounds.staleness)
    assert rounds.staleness_mean > 0.5 and rounds.staleness[-1] > 0
    assert sum(rounds.rank_shares) == pytest.approx(1.0) and min(rounds.rank_shares) == rounds.rank_shares[3]
    assert rounds.effective_batch is not None and rounds.per_second is not None
    rate = arm(summary, "quorum").examples_per_second
    assert rate is not None, "examples per second are those of a round, times rounds per second"
    assert rounds.effective_batch.mean * rounds.per_second.mean == pytest.approx(rate.mean, rel=0.03)
    assert rounds.waiting_share is not None and rounds.waiting_share.mean < 0.02
    assert rounds.waiting_in_step is not None
    waited = arm(summary, "ddp").steps
    assert waited is not None
    assert rounds.waiting_in_step.mean == pytest.approx(waited.shares["waiting"] / waited.mean, abs=0.05)


def test_shares_are_no_more_than_all() -> None:
    """With seeds that differ much, the interval would reach beyond possible values."""
    interval = Estimate.of([0.2, 0.9, 0.55], most=1.0)
    assert (interval.mean, interval.low, interval.high) == (pytest.approx(0.55), 0.0, 1.0)


def test_histograms_can_be_laid_over_each_other(summary: Summary) -> None:
    steps = [side.steps for side in summary.arms if side.steps is not None]
    assert len({times.edges for times in steps}) == 1
    assert [sum(times.counts) == times.count for times in steps] == [True] * 3


def test_what_differed_is_named_and_nothing_else(summary: Summary) -> None:
    fairness = summary.fairness
    assert fairness.differed == {
        "strategy": {"ddp": "ddp", "all-reduce": "all-reduce", "quorum": "quorum"},
        "settings.wait_for": {"ddp": None, "all-reduce": None, "quorum": 2},
        "learning_rate_factor": {"ddp": 1.0, "all-reduce": 1.0, "quorum": 0.5},
    }
    assert "Every run trained on 1,920 examples, over all workers." in fairness.equal
    assert "Injected delays: rank:3:15ms, in every arm." in fairness.equal
    assert (fairness.warm_up_steps, fairness.seeds) == (5, (0, 1, 2))


def test_the_search_for_learning_rates(summary: Summary) -> None:
    assert len(summary.tuning) == 9
    assert [(trial.arm, trial.factor) for trial in summary.tuning if trial.is_chosen] == [
        ("ddp", 1.0),
        ("all-reduce", 1.0),
        ("quorum", 0.5),
    ]
    assert all(trial.quality is not None and 0.5 < trial.quality < 0.75 for trial in summary.tuning)
    assert any(
        "tried for every arm: 0.5, 1 and 2 times the usual one" in sentence for sentence in summary.fairness.equal
    )


def test_how_to_do_it_again(summary: Summary) -> None:
    again = summary.reproduce
    assert again.command[:2] == ("quorate", "compare") and again.machine["cores"] == 8
    assert again.git == {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": False}
    assert again.packages["torch"] == "2.13.0"
    assert again.settings["equal"] == "examples" and not {"host", "arms", "git"} & set(again.settings)


def test_seeds_that_repeat_one_training_are_told(tmp_path: Path) -> None:
    sentence = "the first losses of all seeds are equal: the script sets a seed of its own"
    folder = make_comparison(tmp_path, fails=False)
    assert not any(sentence in warning for warning in summarize(folder).warnings)
    for path in folder.glob("*/seed-*/rank-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            if row["kind"] == "step" and row["step"] == 1:
                row["loss"] = 2.5
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert any(sentence in warning for warning in summarize(folder).warnings)


def test_one_seed_shows_no_difference(tmp_path: Path) -> None:
    summary = summarize(make_comparison(tmp_path, seeds=(7,), fails=False, steps=30))
    assert "only one seed: no difference can be significant" in summary.warnings
    for side in summary.arms:
        assert set(side.differences.values()) <= {"no significant difference"}
        assert side.quality is not None and side.quality.low is None and len(side.quality.values) == 1
    assert "times as fast as ddp to top1 0.62 (one seed). Quality: no significant difference, top1" in summary.verdict


def test_work_that_was_to_be_equal_and_was_not(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1), fails=False, steps=30)
    for seed in (0, 1):
        make_run(tmp_path / "quorum" / f"seed-{seed}", waits=False, steps=33, seed=seed)
    summary = summarize(tmp_path)
    assert any(
        warning.startswith("the arms trained on different numbers of examples: ddp 960, all")
        for warning in summary.warnings
    )
    assert not any("Every run trained on" in sentence for sentence in summary.fairness.equal)


def test_work_that_is_a_step_apart_is_equal(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1), fails=False, steps=30)
    for seed in (0, 1):
        make_run(tmp_path / "quorum" / f"seed-{seed}", waits=False, steps=31, seed=seed)
    summary = summarize(tmp_path)
    assert not any("equally many" in warning for warning in summary.warnings)
    assert "Every run trained on 960 to 992 examples, over all workers." in summary.fairness.equal


def test_a_target_nobody_met(tmp_path: Path) -> None:
    folder = changed(make_comparison(tmp_path, fails=False, steps=20), lambda plan: plan.update(target=0.99))
    for side in summarize(folder).arms:
        assert side.time_to_target is None and side.target_reached == (0, 3) and side.target_speedup is None
        assert "time_to_target" not in side.differences


def test_times_to_a_target_some_missed_show_nothing(tmp_path: Path) -> None:
    make_comparison(tmp_path, fails=False)
    make_run(tmp_path / "quorum" / "seed-1", waits=False, quality=0.5, seed=1)
    summary = arm(summarize(tmp_path), "quorum")
    assert summary.target_reached == (2, 3) and summary.target_speedup is not None
    assert summary.differences["time_to_target"] == "no significant difference"


def test_who_failed_after_the_target_has_not_reached_it(tmp_path: Path) -> None:
    folder = changed(make_comparison(tmp_path), lambda plan: plan.update(target=0.3))
    assert arm(summarize(folder), "all-reduce").target_reached == (2, 3)


def test_no_interval_of_a_time_is_below_zero(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1, 2), fails=False, steps=30)
    make_run(tmp_path / "ddp" / "seed-1", compute=0.2, strategy="ddp", seed=1, quality=-0.7)
    base = summarize(tmp_path).arms[0]
    assert base.seconds is not None and base.seconds.low == 0.0 < (base.seconds.high or 0.0)
    assert base.quality is not None and base.quality.low is not None and base.quality.low < 0.0


def test_an_arm_that_always_failed(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1), fails=False, steps=20)
    for seed in (0, 1):
        make_run(tmp_path / "quorum" / f"seed-{seed}", fails_at=10, seed=seed)
    summary = summarize(tmp_path)
    lost = arm(summary, "quorum")
    assert lost.quality is None and lost.steps is None and lost.arrival is None and lost.timeline == ()
    assert lost.differences == {} and lost.target_reached == (0, 2)
    assert summary.verdict.endswith("\nquorum: no run ended well.")


def test_a_baseline_that_always_failed(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0,), steps=20)
    make_run(tmp_path / "ddp" / "seed-0", fails_at=10)
    assert summarize(tmp_path).verdict == "No run of the baseline ddp ended well, so there is no comparison."


def test_a_comparison_that_is_under_way(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1), fails=False, steps=20)
    summary = summarize(changed(tmp_path, lambda plan: plan.update(seeds=[0, 1, 2])))
    assert summary.arms[0].runs[2].status is None
    assert summary.warnings[0] == (
        "the comparison was stopped: 3 runs not run (seed 2 of ddp, all-reduce and quorum); "
        f"continue with: quorate compare --continue {tmp_path}"
    )
    assert "failed" not in " ".join(summary.warnings) and summary.fairness.seeds == (0, 1)
    with held(tmp_path):
        (tmp_path / "ddp" / "seed-2").mkdir()
        later = summarize(tmp_path)
    assert later.warnings[0] == (
        "the comparison is under way: 1 run under way (seed 2 of ddp), 2 runs not run (seed 2 of all-reduce and quorum)"
    )
    assert "1 of 3 runs under way" in page(later)


def test_of_a_stopped_comparison_each_run_is_told_once_with_the_command_that_goes_on(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1), fails=False, steps=20)
    make_run(tmp_path / "quorum" / "seed-0", fails_at=10, seed=0)
    (tmp_path / "all-reduce" / "seed-1" / "outcome.json").unlink()
    shutil.rmtree(tmp_path / "quorum" / "seed-1")
    summary = summarize(tmp_path)
    assert summary.warnings[0] == (
        "the comparison was stopped: 1 run stopped (seed 1 of all-reduce), 1 run not run (seed 1 of quorum), 1 run "
        f"failed (quorum, seed 0: {KILLED}), figures are of seed 0, which every arm has completed; "
        f"continue with: quorate compare --continue {tmp_path}"
    )
    others = [warning for warning in summary.warnings[1:] if "seed 1" in warning or "seed 0" in warning]
    assert not others
    assert [side.seeds for side in summary.arms] == [(0,), (0,), ()]
    shown = parsed(page(summary)).one("table", "first").text
    for words in ("1 of 2 runs stopped", "1 of 2 runs not run", "1 of 2 runs failed", "1 of 2 seeds (0)"):
        assert words in shown


def test_figures_side_by_side_are_of_the_seeds_that_both_have(tmp_path: Path) -> None:
    make_comparison(tmp_path, fails=False, steps=20)
    make_run(tmp_path / "quorum" / "seed-0", fails_at=10, seed=0)
    summary = summarize(tmp_path)
    base, less = arm(summary, "ddp"), arm(summary, "quorum")
    assert base.quality is not None and less.quality is not None and less.seeds == (1, 2)
    assert less.alongside["quality"] == pytest.approx(sum(base.quality.values[1:]) / 2)
    assert arm(summary, "all-reduce").alongside == {}
    cell = parsed(page(summary)).one("td", data_arm="quorum", data_field="quality")
    assert f"baseline there: {less.alongside['quality']:.4f}" in cell.text
    make_run(tmp_path / "ddp" / "seed-1", fails_at=10, seed=1, strategy="ddp")
    summary = summarize(tmp_path)
    assert [side.seeds for side in summary.arms] == [(0, 2), (0, 2), (2,)]
    assert "all-reduce: figures are of seeds 0 and 2, which ddp has too" in summary.warnings
    assert arm(summary, "all-reduce").target_reached == (2, 2)


def test_a_stopped_comparison_sets_equal_seeds_side_by_side(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0,), fails=False, steps=20, quality=0.5)
    make_run(tmp_path / "ddp" / "seed-1", strategy="ddp", seed=1, steps=20, quality=0.01)
    stopped = changed(tmp_path, lambda plan: plan.update(seeds=[0, 1]))
    own = arm(summarize(stopped), "all-reduce").quality
    base = arm(summarize(stopped), "ddp").quality
    assert own is not None and base is not None and len(own.values) == len(base.values) == 1
    both = f"top1 {own.values[0]:.3g} against {base.values[0]:.3g}."
    assert f"Quality: no significant difference, {both}" in summarize(stopped).verdict
    assert len(summarize(stopped).arms[0].curves) == 1, "nor are charts of other seeds"


def test_of_runs_that_never_began_none_has_failed(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0,), fails=False, steps=20)
    shutil.rmtree(tmp_path / "quorum")
    summary = summarize(tmp_path)
    assert summary.verdict.endswith("\nquorum: no run has ended yet.")
    assert arm(summary, "quorum").runs[0].why == "it has not begun"
    shown = page(summary)
    assert "not run" in shown and ">failed<" not in shown and "Runs that failed or did not end" not in shown


def test_a_training_that_diverged_does_not_make_the_rest_look_good(tmp_path: Path) -> None:
    make_comparison(tmp_path, fails=False, quality=0.7)
    for seed in (0, 1, 2):
        make_run(tmp_path / "all-reduce" / f"seed-{seed}", seed=seed, quality=0.9)
    assert arm(summarize(tmp_path), "all-reduce").differences["quality"] == "better"
    with open(records_of(tmp_path / "all-reduce" / "seed-1", 0), "a", encoding="utf-8") as file:
        file.write('{"kind":"log","step":60,"time":1e6,"values":{"top1":NaN}}\n')
    summary = summarize(tmp_path)
    diverged = arm(summary, "all-reduce")
    assert diverged.differences["quality"] == "no significant difference"
    assert diverged.quality is not None and len(diverged.quality.values) == 2
    assert "all-reduce, seed 1: top1 is not a number at step 60" in summary.warnings


def test_changes_in_no_commit_and_too_few_cores(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0,), steps=20)
    summary = summarize(changed(tmp_path, lambda plan: plan.update(git={"commit": "0", "dirty": True}, cores=2)))
    assert summary.warnings[-2:] == (
        "4 workers shared 2 cores: they slowed each other down",
        "the working tree had uncommitted changes",
    )


@pytest.mark.parametrize(("servers", "who"), [(2, "4 workers and 2 servers"), (1, "4 workers and 1 server")])
def test_servers_share_the_cores_too(tmp_path: Path, servers: int, who: str) -> None:
    make_comparison(tmp_path, seeds=(0,), steps=20)
    summary = summarize(changed(tmp_path, lambda plan: plan.update(servers=servers, cores=4)))
    assert summary.warnings[-1] == f"{who} shared 4 cores: they slowed each other down"


def test_workers_on_hosts_are_told_of_as_such(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0,), steps=20)
    summary = summarize(changed(tmp_path, lambda plan: plan.update(hosts="a:2,b:2", cores=2)))
    assert summary.title == "stdlib-functions on 4 workers of 2 hosts"
    assert "Every arm had 4 workers on the same hosts, a:2,b:2." in summary.fairness.equal
    assert not any("shared" in warning for warning in summary.warnings)


def test_clocks_of_hosts_are_told_of_once(tmp_path: Path) -> None:
    make_comparison(tmp_path, seeds=(0, 1), steps=20, clocks=(("a", 1000.0), ("b", 5000.0)))
    warnings = [warning for warning in summarize(tmp_path).warnings if "clocks" in warning or "times of day" in warning]
    assert warnings == ["arrivals on 2 hosts are compared by times of day, at worst in 5 runs"]


def test_without_a_metric_there_is_speed_alone(tmp_path: Path) -> None:
    make_comparison(tmp_path, fails=False, steps=20)
    summary = summarize(changed(tmp_path, lambda plan: plan.update(metric=None, target=None)))
    for side in summary.arms:
        assert side.quality is None and side.curves == () and side.losses != () and "quality" not in side.differences
    assert summary.verdict.count(" times as fast as ddp (") == 2 and "Quality" not in summary.verdict


def test_examples_that_nobody_counted(tmp_path: Path) -> None:
    summary = summarize(make_comparison(tmp_path, fails=False, steps=20, counts_examples=False))
    assert arm(summary, "all-reduce").examples_per_second is None and arm(summary, "all-reduce").speedup is None
    assert any("examples were not counted" in warning for warning in summary.warnings)
    assert summary.arms[0].curves[0].examples == () and summary.arms[0].curves[0].bytes != ()


def test_a_run_alone(tmp_path: Path) -> None:
    summary = summarize(make_run(tmp_path, steps=60))
    (only,) = summary.arms
    assert (only.name, only.strategy, only.is_baseline, summary.baseline) == ("all-reduce", "all-reduce", False, None)
    assert summary.fairness.warm_up_steps == 6 and summary.warnings == () and only.runs[0].folder == "."
    assert summary.verdict.startswith("4 workers took steps of 4") and "; rank 3 arrived last in" in summary.verdict


def test_the_page_of_one_run_of_a_workload_has_its_name_and_metric(tmp_path: Path) -> None:
    by_hand = {"script": "/x/train_workload.py", "arguments": ["digits", "--epochs", "3"]}
    summary = summarize(make_run(tmp_path / "a", steps=20, about=by_hand))
    assert summary.title == "digits on 4 workers"
    assert summary.metric == Metric(name="top1", higher_is_better=True) and summary.arms[0].quality is not None
    compared = {"subject": {"name": "mine"}, "metric": {"name": "top1", "higher_is_better": True}, "target": 0.6}
    summary = summarize(make_run(tmp_path / "b", steps=20, about={**by_hand, **compared}))
    assert (summary.title, summary.target) == ("mine on 4 workers", 0.6)
    assert ", top1 0.6" in summary.verdict and " at the end; rank 3 arrived last in" in summary.verdict
    summary = summarize(make_run(tmp_path / "c", steps=20, about={**by_hand, "arguments": ["no-workload"]}))
    assert (summary.title, summary.metric) == ("train_workload.py on 4 workers", None)


def test_a_run_whose_strategy_is_the_scripts_own(tmp_path: Path) -> None:
    folder = make_run(tmp_path, strategy=None, steps=20)
    assert summarize(folder).arms[0].name == "all-reduce", "the records say which it was"
    for rank in range(4):
        path = records_of(folder, rank)
        path.write_text("".join(line for line in path.read_text().splitlines(True) if '"distribute"' not in line))
    assert summarize(folder).arms[0].name == "the script's own"


def test_a_run_alone_is_reported_however_it_ended(tmp_path: Path) -> None:
    summary = summarize(make_run(tmp_path, fails_at=30))
    assert summary.arms[0].examples_per_second is not None
    assert summary.warnings == (f"the run failed with status 1: {KILLED}",)
    (tmp_path / "outcome.json").unlink()
    assert summarize(tmp_path).warnings[0].startswith("the run has no outcome")


def test_a_run_that_left_nothing_but_its_plan(tmp_path: Path) -> None:
    make_run(tmp_path)
    for rank in range(4):
        records_of(tmp_path, rank).unlink()
    summary = summarize(tmp_path)
    assert summary.verdict == "No worker has recorded enough steps to measure this run."
    assert summary_type().model_validate_json(summary.model_dump_json()) == summary


def test_a_rank_that_left_nothing_is_named(tmp_path: Path) -> None:
    make_run(tmp_path)
    records_of(tmp_path, 2).unlink()
    assert "the run: rank 2 left no steps" in summarize(tmp_path).warnings


def test_a_folder_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no run and no comparison in"):
        summarize(tmp_path)
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read as the plan of a comparison"):
        summarize(tmp_path)
    (tmp_path / "compare.json").write_text('{"format": 99, "arms": [{"name": "ddp"}]}')
    with pytest.raises(ConfigurationError, match="has format 99"):
        summarize(tmp_path)


def test_what_is_written_can_be_read_again(made: Path, summary: Summary, tmp_path: Path) -> None:
    write_summary(tmp_path, summary)
    assert summary_type().model_validate_json((tmp_path / "summary.json").read_text()) == summary
    assert "NaN" not in (tmp_path / "summary.json").read_text()
    write_summary(tmp_path, summary)
    assert not list(tmp_path.rglob("*.part"))


def test_every_plot_has_its_data(summary: Summary, tmp_path: Path) -> None:
    write_summary(tmp_path, summary)
    quorum = arm(summary, "quorum")
    assert quorum.rounds is not None
    tables = {path.stem: list(csv.reader(path.read_text().splitlines())) for path in (tmp_path / "data").glob("*.csv")}
    assert {name: len(rows) - 1 for name, rows in tables.items()} == {
        "curves": (3 + 2 + 3) * 6,
        "losses": sum(len(curve.seconds) for side in summary.arms for curve in side.losses),
        "step_times": 3 * 40,
        "shares": 3 * 10,
        "arrival": 3 * 4,
        "noise": 0,
        "attention": 0,
        "exclusions": 0,
        "tuning": 0,
        "heat": sum(4 * len(side.arrival.steps) for side in summary.arms if side.arrival is not None),
        "timeline": sum(len(lane.spans) for side in summary.arms for lane in side.timeline),
        "rounds": 6,
        "memory": 0,
        "stages": 0,
        "layers": 0,
        "staleness": len(quorum.rounds.staleness),
        "contributors": 5,
        "rank_shares": 4,
        "served": 0,  # nor are there servers
        "given": 0,
        "servers": 0,
        "marks": sum(len(mark.given) for mark in quorum.marks),
        "distances": 0,  # no replicas differ here
        "faults": 0,
        "joined": 0,
        "replica_curves": 0,
        "scale": 0,
        "shrink": 0,
    }
    assert {len(rows[0]) == len(row) for rows in tables.values() for row in rows} == {True}


def test_the_summary_in_words(summary: Summary, tmp_path: Path) -> None:
    write_summary(tmp_path, summary)
    text = (tmp_path / "summary.md").read_text()
    rows = {row.split("|")[1].strip(): row for row in text.splitlines() if row.startswith("| ")}
    assert "**" not in rows["ddp (baseline)"] + rows["all-reduce"]
    assert "**1.49× (1.47× to 1.51×, 3 seeds)**" in rows["quorum"] and "3 seeds): worse" in rows["quorum"]
    assert "| 40.0 kB (3 seeds) |" in rows["ddp (baseline)"]
    assert "no significant difference" in rows["all-reduce"] and rows["all-reduce"].endswith("| 2 of 3 |")
    assert f"- Caution: {summary.warnings[0]}." in text
    assert "quorate compare -n 4 --workload stdlib-functions --tune" in text
    (rounds,) = re.findall(r"## Rounds\n\n(.*)\n\n## Reproduce", text)
    assert re.fullmatch(
        r"- quorum: 7\d\.\d rounds \(\d\d\.\d per second\), 3\.\d\d of 4 workers in each; \d\d% of the gradients "
        r"fresh, staleness 0\.\d+ on average and at most \d; rank 3 has the smallest share of the applied "
        r"gradients, \d\d%; effective batch 2\d\.\d; 0\.\d% of the time was waiting, \d\d% if all had waited\.",
        rounds,
    )


def test_without_a_quorum_nothing_is_said_of_rounds(tmp_path: Path) -> None:
    write_summary(tmp_path, summarize(make_run(tmp_path)))
    assert "Rounds" not in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "data" / "rounds.csv").read_text() == "arm,figure,mean,low,high\n"


@pytest.mark.parametrize(("communication", "verdict"), [(0.0009, "faster"), (0.0029, "slower")])
def test_what_a_codec_saves_and_costs_is_said(summary: Summary, communication: float, verdict: str) -> None:
    dense, other = arm(summary, "ddp"), arm(summary, "all-reduce")
    assert dense.steps is not None and other.steps is not None
    before = {**dense.steps.shares, "communication": 0.0034, "encode": 0.0, "decode": 0.0}
    after = before | {"communication": communication, "encode": 0.0008, "decode": 0.0002}
    dense = dense.model_copy(update={"steps": dense.steps.model_copy(update={"shares": before})})
    steps = other.steps.model_copy(update={"shares": after})
    sent = Estimate(mean=10_000.0, low=None, high=None, values=(10_000.0,))
    coded = other.model_copy(update={"steps": steps, "settings": {"compress": "half"}, "bytes_per_step": sent})
    saved = "2.50 ms" if verdict == "faster" else "500 µs"
    said = f"saves {saved} of communication a step, costs 1.00 ms of coding and sends 0.250 times the bytes"
    assert coding_of(coded, dense) == f"{said}: {verdict} here"
    assert coding_of(dense, coded) is None and coding_of(coded, coded) is None
