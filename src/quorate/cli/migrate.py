"""`quorate migrate`: the calls of Quorate that say what a configuration of DeepSpeed says, and what has no equivalent.

Keys are those of DeepSpeed's documentation of `ds_config.json`, version 0.17.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.core.errors import ConfigurationError

_OPTIMIZERS = {
    "adam": ("torch.optim.AdamW", ""),
    "adamw": ("torch.optim.AdamW", ""),
    "adagrad": ("torch.optim.Adagrad", ""),
    "sgd": ("torch.optim.SGD", ""),
    "lamb": ("quorate.optim.LAMB", ""),
    "onebitadam": ("torch.optim.AdamW", ', compress="one-bit"'),
    "zerooneadam": ("torch.optim.AdamW", ', compress="one-bit"'),
    "onebitlamb": ("quorate.optim.LAMB", ', compress="one-bit"'),
}
"""By DeepSpeed's name: the class, and what is added to `distribute`."""
_ARGUMENTS = {"lr", "betas", "eps", "weight_decay", "momentum"}

_IGNORED = {
    "steps_per_print": "progress is shown by `quorate run`",
    "wall_clock_breakdown": "every run records where its time goes: `quorate report RUN`",
    "dump_state": "nothing to set",
    "memory_breakdown": "`quorate doctor --memory` predicts it; reports show it",
    "comms_logger": "bytes of each step are in the report",
    "flops_profiler": "use torch.profiler, and `quorate trace --profile`",
    "csv_monitor": "every run has records: `quorate report RUN`",
    "prescale_gradients": "means are scaled before they are added",
    "gradient_predivide_factor": "means are scaled before they are added",
    "disable_allgather": "nothing to set",
    "zero_allow_untested_optimizer": "any torch optimizer is taken; an unsuitable one is refused",
    "zero_force_ds_cpu_optimizer": "the host's step is torch's own",
    "tensorboard": "`quorate run --log tensorboard`",
    "wandb": "`quorate run --log wandb`",
    "checkpoint": "`quorate.save()` writes the pieces of all workers in one folder",
}
_MISSING = {
    "amp": "Apex is not used; choose a precision",
    "scheduler": "make the scheduler in the script, from torch.optim.lr_scheduler",
    "activation_checkpointing": "call torch.utils.checkpoint in the model",
    "sparse_gradients": "build the layer with sparse=False",
    "sparse_attention": "no equivalent",
    "compression_training": "no equivalent: no pruning or quantization of the model",
    "autotuning": "`quorate plan --try N` measures layouts; nothing tunes batches",
    "data_efficiency": "no equivalent",
    "curriculum_learning": "no equivalent",
    "progressive_layer_drop": "no equivalent",
    "eigenvalue": "no equivalent",
    "quantize_training": "no equivalent",
    "aio": "no equivalent: files are memory-mapped",
    "communication_data_type": 'pass compress="half" to distribute for 16 bits',
    "elasticity": "`quorate run --max-joins N`, and a strategy that outlives deaths",
    "nebula": "no equivalent",
}


@dataclass
class Migration:
    """The calls that a configuration becomes."""

    parallelize: dict[str, str] = field(default_factory=dict)
    """Arguments of `quorate.parallelize`; none if the model stays whole."""
    optimizer: str = "torch.optim.AdamW(model.parameters(), lr=1e-3)"
    distribute: str = ""
    accumulates: int = 1
    clip_norm: float | None = None
    batch: str = "batch_size"
    has_scaler: bool = False
    notes: list[str] = field(default_factory=list)
    """Settings that the code does not make, or that have no equivalent."""

    @property
    def code(self) -> str:
        """The calls, as Python."""
        lines = ["import torch", "import quorate", "", "world = quorate.join()"]
        if self.parallelize:
            arguments = ", ".join(f"{name}={value}" for name, value in self.parallelize.items())
            lines.append(f"model = quorate.parallelize(model, world.mesh(shards=world.size), {arguments})")
        else:
            lines.append("model = model.to(world.device)")
        lines.append(f"optimizer = {self.optimizer}")
        lines.append(f"optimizer = quorate.distribute(optimizer, model{self.distribute})")
        lines.append(f"loader = quorate.loader(dataset, batch_size={self.batch})")
        if self.has_scaler:
            lines.append("scaler = torch.amp.GradScaler(world.device.type)")
        lines += ["", "for number, batch in enumerate(loader):", *self._step()]
        return "\n".join(lines)

    def _step(self) -> list[str]:
        loss = "loss_of(model, batch)" + (f" / {self.accumulates}" if self.accumulates > 1 else "")
        back = f"scaler.scale({loss}).backward()" if self.has_scaler else f"({loss}).backward()"
        if "/" not in loss and not self.has_scaler:
            back = f"{loss}.backward()"
        clip = (
            []
            if self.clip_norm is None
            else [f"torch.nn.utils.clip_grad_norm_(model.parameters(), {self.clip_norm:g})"]
        )
        if self.has_scaler and clip:
            clip.insert(0, "scaler.unscale_(optimizer)")
        step = ["scaler.step(optimizer)", "scaler.update()"] if self.has_scaler else ["optimizer.step()"]
        whole = [back, *clip, *step, "optimizer.zero_grad()"]
        if self.accumulates == 1:
            return [f"    {line}" for line in whole]
        return [
            f"    if number % {self.accumulates} < {self.accumulates - 1}:",
            "        with optimizer.accumulate():",
            f"            {back}",
            "        continue",
            *(f"    {line}" for line in whole),
        ]


def migrated(config: Mapping[str, Any]) -> Migration:
    """Return what a configuration of DeepSpeed becomes. Raises `ConfigurationError` for values that it cannot have."""
    made = Migration()
    readers: dict[str, Callable[[Any], None]] = {
        "train_micro_batch_size_per_gpu": lambda size: setattr(made, "batch", str(size)),
        "gradient_accumulation_steps": lambda count: setattr(made, "accumulates", _whole(count)),
        "gradient_clipping": lambda norm: setattr(made, "clip_norm", float(norm) or None),
        "optimizer": lambda about: _optimizer(made, about),
        "zero_optimization": lambda about: _zero(made, about),
        "bf16": lambda about: _precision(made, about, "bfloat16"),
        "bfloat16": lambda about: _precision(made, about, "bfloat16"),
        "fp16": lambda about: _precision(made, about, "float16"),
    }
    for key, value in sorted(config.items(), key=lambda item: item[0] != "zero_optimization"):
        if key in readers:
            try:
                readers[key](value)
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                raise ConfigurationError(
                    f"{key} is {json.dumps(value)}, which DeepSpeed does not take ({error})"
                ) from None
        elif key == "train_batch_size":
            made.notes.append(
                f"train_batch_size {value}: the batch of all workers follows from batch_size, accumulation and workers"
            )
        elif value not in (False, None, {}, {"enabled": False}):
            meaning = _IGNORED.get(key) or _MISSING.get(key) or "not known"
            made.notes.append(f"{key}: {meaning}")
    if made.batch == "batch_size" and "train_batch_size" in config and config["train_batch_size"] != "auto":
        made.batch = f"{config['train_batch_size']} // world.size" + (
            f" // {made.accumulates}" if made.accumulates > 1 else ""
        )
    if made.batch == "auto":
        made.batch = "batch_size"
    return made


def _whole(value: Any) -> int:
    return 1 if value == "auto" else int(value)


def _is_on(about: Mapping[str, Any]) -> bool:
    return about.get("enabled") in (True, "auto")


def _precision(made: Migration, about: Mapping[str, Any], dtype: str) -> None:
    if not _is_on(about):
        return
    if made.parallelize:
        made.parallelize["precision"] = f'"{dtype}"'
    else:
        made.notes.append(f"{dtype}: compute the loss in torch.autocast(world.device.type, torch.{dtype})")
    if dtype == "float16":
        made.has_scaler = True
        if about.get("loss_scale"):
            made.notes.append("fp16.loss_scale: pass init_scale and growth_interval to GradScaler")


def _optimizer(made: Migration, about: Mapping[str, Any]) -> None:
    name = str(about["type"])
    if name.lower() not in _OPTIMIZERS:
        made.optimizer = f"{name}(model.parameters(), ...)"
        made.notes.append(f"optimizer.type {name}: not one of DeepSpeed's own; make it in the script")
        return
    kind, extra = _OPTIMIZERS[name.lower()]
    params = about.get("params") or {}
    arguments = [f"{key}={_literal(value)}" for key, value in params.items() if key in _ARGUMENTS and value != "auto"]
    made.optimizer = f"{kind}({', '.join(['model.parameters()', *arguments])})"
    made.distribute += extra
    if extra:
        made.notes.append(
            f"optimizer.type {name}: gradients are compressed to one bit with error feedback from the first step on; "
            "DeepSpeed compresses momentum after a warm-up"
        )
    made.notes += [f"optimizer.params.{key}: set it in the script" for key in params if key not in _ARGUMENTS]


def _literal(value: Any) -> str:
    return repr(tuple(value)) if isinstance(value, list) else repr(value)


_ZERO_IGNORED = ("bucket", "overlap_comm", "contiguous", "persistence", "prefetch", "live", "reuse", "scatter", "pin")


def _zero(made: Migration, about: Mapping[str, Any]) -> None:
    stage = about.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise ValueError("the stage is 0, 1, 2 or 3")
    if stage:
        made.parallelize["zero"] = str(stage)
    parameters, optimizer = (
        (about.get(f"offload_{kind}") or {}).get("device", "none") for kind in ("param", "optimizer")
    )
    parameters = "cpu" if about.get("cpu_offload_params") else parameters
    optimizer = "cpu" if about.get("cpu_offload") else optimizer
    devices = {parameters, optimizer}
    if stage and devices != {"none"}:
        kind = "all" if parameters != "none" else "disk" if optimizer == "nvme" else "optimizer"
        made.parallelize["offload"] = f'"{kind}"'
        if parameters == "nvme":
            made.notes.append("zero_optimization.offload_param on nvme: parameters are kept in host memory")
    for key in about:
        if key in ("stage", "offload_param", "offload_optimizer", "cpu_offload", "cpu_offload_params"):
            continue
        if not any(word in key for word in _ZERO_IGNORED):
            made.notes.append(f"zero_optimization.{key}: no equivalent")


def migrate(
    file: Annotated[Path, typer.Argument(help="DeepSpeed's configuration, a JSON file.", metavar="ds_config.json")],
    as_json: Annotated[bool, typer.Option("--json", help="Print code and notes as one JSON object.")] = False,
) -> None:
    """Print the calls of Quorate that say what a configuration of DeepSpeed says."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"{file} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigurationError(f"{file} is no configuration of DeepSpeed: it is not a JSON object")
    made = migrated(config)
    if as_json:
        typer.echo(json.dumps({"code": made.code, "notes": made.notes}))
        return
    typer.echo(made.code)
    if made.notes:
        typer.echo("\nnot in the code:")
        for note in made.notes:
            typer.echo(f"- {note}")
