"""`quorate migrate`: what a configuration of DeepSpeed becomes."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
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
    assert "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-05, betas=(0.8, 0.999), weight_decay=0.0)" in lines
    assert "scaler = torch.amp.GradScaler(world.device.type, init_scale=2.0**16, growth_interval=1000)" in lines
    assert "loader = quorate.loader(dataset, batch_size=8)" in lines
    assert "            scaler.scale(loss_of(model, batch) / 4).backward()" in lines
    assert lines[-6:] == [
        "    scaler.unscale_(optimizer)",
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        "    scaler.step(optimizer)",
        "    scaler.update()",
        "    optimizer.zero_grad()",
        "optimizer.finish()",
    ]
    assert made.notes == [
        "zero_optimization.sub_group_size: no equivalent",
        "steps_per_print: progress is shown by `quorate run`",
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
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}, "accumulation = max(1, 64 // 8 // world.size)"),
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8},
            "            (loss_of(model, batch) / accumulation).backward()",
        ),
        ({"train_batch_size": "auto"}, "loader = quorate.loader(dataset, batch_size=batch_size)"),
        (
            {"train_micro_batch_size_per_gpu": "auto"},
            "loader = quorate.loader(dataset, batch_size=args.per_device_train_batch_size)",
        ),
        ({"gradient_accumulation_steps": "auto"}, "accumulation = args.gradient_accumulation_steps"),
        (
            {"gradient_clipping": "auto"},
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}}},
            "optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, "
            "betas=(args.adam_beta1, args.adam_beta2), weight_decay=args.weight_decay)",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
            "optimizer = torch.optim.Adam(model.parameters())",
        ),
        (
            {"optimizer": {"type": "NAdam", "params": {"lr": 0.1, "foreach": True}}},
            "optimizer = torch.optim.NAdam(model.parameters(), lr=0.1, foreach=True)",
        ),
        (
            {"zero_optimization": {"stage": 3, "mics_shard_size": 4}},
            "model = quorate.parallelize(model, world.mesh(shards=4), zero=3)",
        ),
        (
            {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"}}},
            'model = quorate.parallelize(model, world.mesh(shards=world.size), zero=1, offload="disk", '
            'offload_folder="/disk")',
        ),
        (
            {"fp16": {"enabled": True, "loss_scale": 128}},
            "scaler = torch.amp.GradScaler(world.device.type, init_scale=128.0, growth_interval=1000000000)",
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02}}},
            "optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)",
        ),
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
            'optimizer = quorate.distribute(optimizer, model, "one-bit-adam")',
        ),
        (
            {"optimizer": {"type": "ZeroOneAdam", "params": {"var_freeze_step": 400, "local_step_clipper": 8}}},
            'optimizer = quorate.distribute(optimizer, model, "zero-one-adam", freeze=400, longest=8)',
        ),
        (
            {"optimizer": {"type": "OneBitLamb", "params": {"freeze_step": 1000}}},
            'optimizer = quorate.distribute(optimizer, model, "one-bit-lamb", freeze=1000)',
        ),
        ({"optimizer": {"type": "Lamb"}}, "optimizer = quorate.optim.LAMB(model.parameters(), weight_decay=0.0)"),
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
        ({"sparse_attention": {"mode": "fixed"}}, "sparse_attention: call quorate.sparse_attention"),
        ({"compression_training": {"weight_quantization": {}}}, "compression_training: quorate.shrink prunes"),
        ({"progressive_layer_drop": {"enabled": True}}, "progressive_layer_drop: no equivalent"),
        ({"something": 3}, "something: not known"),
        ({"bf16": {"enabled": True}}, "torch.autocast"),
        ({"optimizer": {"type": "Muon"}}, "give it the matrices"),
        ({"bf16": {"enabled": "auto"}}, "bf16.enabled auto: if args.bf16 is set"),
        ({"fp16": {"enabled": True, "hysteresis": 2}}, "fp16.hysteresis: GradScaler lowers"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, "auto: args are the TrainingArguments"),
        ({"scheduler": {"type": "Own"}}, "scheduler.type Own: make it in the script"),
        (
            {"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1, "cycle_max_lr": 2}}},
            "betas stay as they are",
        ),
    ],
    ids=str,
)
def test_what_has_no_equivalent_is_said(config: dict[str, Any], words: str) -> None:
    assert any(words in note for note in migrated(config).notes)


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": {"stage": 7}},
        {"fp16": 3},
        {"gradient_clipping": "x"},
        {"train_batch_size": "many"},
        {"scheduler": {"type": "WarmupDecayLR"}},
    ],
    ids=str,
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


SCHEDULERS: list[tuple[str, dict[str, Any], list[float]]] = [
    (
        "WarmupLR",
        {"warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"},
        [0, 0, 0.125, 0.25, 0.375, 0.5],
    ),
    ("WarmupLR", {"warmup_max_lr": 1.0, "warmup_num_steps": 4}, [0, 0, 0.5, math.log(3) / math.log(4), 1, 1, 1]),
    (
        "WarmupLR",
        {"warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 2, "warmup_type": "linear"},
        [0.1, 0.1, 0.3, 0.5, 0.5],
    ),
    (
        "WarmupDecayLR",
        {"total_num_steps": 6, "warmup_max_lr": 1.0, "warmup_num_steps": 2, "warmup_type": "linear"},
        [0, 0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0],
    ),
    (
        "WarmupCosineLR",
        {"total_num_steps": 4, "warmup_num_steps": 2, "cos_min_ratio": 0.0, "warmup_type": "linear"},
        [0, 0, 1e-3 / 2, 1e-3 / 2, 0, 0],
    ),
    (
        "OneCycle",
        {"cycle_min_lr": 0.1, "cycle_max_lr": 0.5, "cycle_first_step_size": 2, "cycle_second_step_size": 4},
        [0.1, 0.3, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1],
    ),
    (
        "OneCycle",
        {
            "cycle_min_lr": 0.1,
            "cycle_max_lr": 0.5,
            "cycle_first_step_size": 1,
            "decay_step_size": 2,
            "decay_lr_rate": 1,
        },
        [0.1, 0.5, 0.1, 0.1 / 1.5, 0.1 / 2],
    ),
]
"""Type, parameters, and the rate of each step, by the formulas of DeepSpeed's documentation."""


@pytest.mark.parametrize(("kind", "params", "rates"), SCHEDULERS)
def test_a_scheduler_has_the_rates_of_deepspeed(kind: str, params: dict[str, Any], rates: list[float]) -> None:
    code = migrated({"scheduler": {"type": kind, "params": params}}).code
    names: dict[str, Any] = {"model": torch.nn.Linear(1, 1), "torch": torch, "math": math}
    wanted = ("def rate", "    ", "optimizer = torch", "scheduler = ")
    head = code.partition("\nfor number")[0].splitlines()
    exec("\n".join(line for line in head if line.startswith(wanted)), names)
    measured = []
    for _ in rates:
        measured.append(names["optimizer"].param_groups[0]["lr"])
        names["optimizer"].step()
        names["scheduler"].step()
    assert measured == pytest.approx(rates)


def test_the_steps_of_a_scheduler_come_from_the_trainer() -> None:
    params = dict.fromkeys(["warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"], "auto")
    config = {
        "scheduler": {"type": "WarmupDecayLR", "params": params},
        "gradient_accumulation_steps": 4,
    }
    lines = migrated(config).code.splitlines()
    assert "total_steps = int(args.num_train_epochs * len(loader)) // 4" in lines
    assert (
        "    warm_up, done = max(2, args.get_warmup_steps(total_steps)), max(0, step - 1)  # DeepSpeed is one step late"
        in lines
    )
    assert "    scheduler.step()" in lines
