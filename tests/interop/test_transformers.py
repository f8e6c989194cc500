"""Inside `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.libraries import check_cases, check_refused, needs, result_of, run, script_of

pytestmark = needs("transformers", "accelerate")


@pytest.mark.timeout(240)
def test_parameters_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    check_cases("transformers", tmp_path)


@pytest.mark.timeout(280)
def test_the_script_of_the_how_to_goes_on_where_it_was(tmp_path: Path) -> None:
    script = script_of("inside-transformers.md")
    sizes, rates = '"n_head": 2}', {f"{part}_pdrop": 0.0 for part in ("attn", "embd", "resid")}
    assert sizes in script
    script = script.replace(sizes, f'"n_head": 2, **{rates}}}')  # the Trainer seeds again as it begins
    half, steps = tmp_path / "half.py", "ENDS = STEPS\n"
    assert steps in script
    (tmp_path / "train.py").write_text(script)
    half.write_text(script.replace(steps, "ENDS = 32\n"))
    whole = result_of(tmp_path, "whole", "train.py")
    assert (tmp_path / "out" / "model.safetensors").exists()
    result_of(tmp_path, "half", "half.py")
    half.write_text(script)
    run(tmp_path, "--resume", "half")
    (*_, last) = (tmp_path / "runs/half/rank-0.log").read_text().split("result ")
    assert last.startswith(str(whole))


def test_a_trainer_that_wraps_the_model_is_refused(tmp_path: Path) -> None:
    script = script_of("inside-transformers.md").splitlines()
    (line,) = (one for one in script if one.startswith("alone.distributed_type"))
    script.remove(line)
    check_refused(
        tmp_path, "\n".join(script), "num_processes=1 in Accelerate's PartialState, which transformers.Trainer"
    )
