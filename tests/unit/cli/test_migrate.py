"""`quorate migrate`: what a configuration of DeepSpeed becomes."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quorate.cli.migrate import migrated
from quorate.cli.verbs import app, status_of
from quorate.core.errors import ConfigurationError

WHOLE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "steps_per_print": 2000,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "torch_adam": True}},
    "fp16": {"enabled": True, "loss_scale": 0},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": "auto",
        "sub_group_size": 1e9,
    },
}


def test_a_configuration_becomes_calls() -> None:
    made = migrated(WHOLE)
    lines = made.code.splitlines()
    ast.parse(made.code)
    assert (
        'model = quorate.parallelize(model, world.mesh(shards=world.size), zero=3, offload="optimizer", '
        'precision="float16")' in lines
    )
    assert "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-05, betas=(0.8, 0.999))" in lines
    assert "loader = quorate.loader(dataset, batch_size=8)" in lines
    assert "            scaler.scale(loss_of(model, batch) / 4).backward()" in lines
    assert lines[-5:] == [
        "    scaler.unscale_(optimizer)",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1)",
        "    scaler.step(optimizer)",
        "    scaler.update()",
        "    optimizer.zero_grad()",
    ]
    assert made.notes == [
        "zero_optimization.sub_group_size: no equivalent",
        "steps_per_print: progress is shown by `quorate run`",
        "optimizer.params.torch_adam: set it in the script",
    ]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({}, "optimizer = quorate.distribute(optimizer, model)"),
        ({"train_batch_size": 64}, "loader = quorate.loader(dataset, batch_size=64 // world.size)"),
        (
            {"train_batch_size": 64, "gradient_accumulation_steps": 2},
            "loader = quorate.loader(dataset, batch_size=64 // world.size // 2)",
        ),
        ({"train_batch_size": "auto"}, "loader = quorate.loader(dataset, batch_size=batch_size)"),
        ({"zero_optimization": {"stage": 0}}, "model = model.to(world.device)"),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}, "bf16": {"enabled": True}},
            "model = quorate.parallelize(model, world.mesh(shards=world.size), "
            'zero=2, offload="disk", precision="bfloat16")',
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            'model = quorate.parallelize(model, world.mesh(shards=world.size), zero=3, offload="all")',
        ),
        (
            {"optimizer": {"type": "OneBitAdam", "params": {"lr": 0.1}}},
            'optimizer = quorate.distribute(optimizer, model, compress="one-bit")',
        ),
        ({"optimizer": {"type": "Lamb"}}, "optimizer = quorate.optim.LAMB(model.parameters())"),
        ({"bf16": {"enabled": False}}, "    loss_of(model, batch).backward()"),
    ],
    ids=str,
)
def test_each_key_becomes_a_line(config: dict[str, Any], line: str) -> None:
    code = migrated(config).code
    ast.parse(code)
    assert line in code.splitlines()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sparse_attention": {"mode": "fixed"}}, "sparse_attention: no equivalent"),
        ({"something": 3}, "something: not known"),
        ({"bf16": {"enabled": True}}, "torch.autocast"),
        ({"optimizer": {"type": "Mine"}}, "make it in the script"),
    ],
    ids=str,
)
def test_what_has_no_equivalent_is_said(config: dict[str, Any], words: str) -> None:
    assert any(words in note for note in migrated(config).notes)


@pytest.mark.parametrize(
    "config", [{"zero_optimization": {"stage": 7}}, {"fp16": 3}, {"gradient_clipping": "x"}], ids=str
)
def test_wrong_values_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{next(iter(config))} is .*which DeepSpeed does not take"):
        migrated(config)


def test_the_verb_prints_code_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(WHOLE))
    done = CliRunner().invoke(app, ["migrate", str(file)])
    assert done.exit_code == 0
    assert "not in the code:\n- zero_optimization.sub_group_size" in done.output
    assert json.loads(CliRunner().invoke(app, ["migrate", str(file), "--json"]).output)["code"] == migrated(WHOLE).code
    for text, words in (("[1]", "not a JSON object"), ("{", "is no JSON")):
        file.write_text(text)
        assert status_of(["migrate", str(file)]) == 2
        assert words in capsys.readouterr().err
    assert status_of(["migrate", str(tmp_path / "missing.json")]) == 2
