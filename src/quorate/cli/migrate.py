"""`quorate migrate`: the calls of Quorate that say what a configuration of DeepSpeed says, and what has no equivalent.

Keys are those of DeepSpeed's documentation of `ds_config.json`, versions 0.17 to 0.19. Values "auto" are filled by the
Trainer of Transformers; the code then names the field of `TrainingArguments` that fills them.
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
    "onebitadam": ("torch.optim.AdamW", "one-bit-adam"),
    "zerooneadam": ("torch.optim.AdamW", "zero-one-adam"),
    "onebitlamb": ("quorate.optim.LAMB", "one-bit-lamb"),
}
"""By DeepSpeed's name: the class, and the strategy."""
_ONE_BIT = {
    "freeze_step": "freeze",
    "var_freeze_step": "freeze",
    "var_update_scaler": "doubles_after",
    "local_step_scaler": "double_every",
    "local_step_clipper": "longest",
}
"""By DeepSpeed's name of a setting of one-bit optimizers: ours."""
_ARGUMENTS = ("lr", "betas", "eps", "weight_decay", "momentum")
_DECAYING = ("torch.optim.AdamW", "quorate.optim.LAMB")
"""Classes whose weight decay DeepSpeed sets to 0 by default, and torch to 0.01."""
_ARGUMENTS_OF_AUTO = {
    "train_micro_batch_size_per_gpu": "args.per_device_train_batch_size",
    "gradient_accumulation_steps": "args.gradient_accumulation_steps",
    "gradient_clipping": "args.max_grad_norm",
    "lr": "args.learning_rate",
    "betas": "(args.adam_beta1, args.adam_beta2)",
    "eps": "args.adam_epsilon",
    "weight_decay": "args.weight_decay",
    "warmup_min_lr": "0.0",
    "warmup_max_lr": "args.learning_rate",
    "warmup_num_steps": "args.get_warmup_steps(total_steps)",
    "total_num_steps": "total_steps",
}
"""By key: the expression that Transformers puts in place of "auto"."""

_NO_EQUIVALENT = (
    "data_efficiency curriculum_learning progressive_layer_drop eigenvalue quantize_training zenflow nebula"
)
_NOTES = {
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
    "amp": "Apex is not used; choose a precision",
    "activation_checkpointing": "call torch.utils.checkpoint in the model",
    "sparse_gradients": "build the layer with sparse=False; all-reduce, quorum and parameter-server exchange rows",
    "sparse_attention": "call quorate.sparse_attention in the model; its patterns are those of `quorate list patterns`",
    "compression_training": "quorate.shrink prunes, clusters and factorizes the model while it trains",
    "autotuning": "`quorate tune` measures how gradients are sent, `quorate plan --try N` layouts, nothing batches",
    **dict.fromkeys(_NO_EQUIVALENT.split(), "no equivalent"),
    "aio": "no equivalent: files are memory-mapped",
    "communication_data_type": 'pass compress="half" to distribute for 16 bits',
    "elasticity": "`quorate run --max-joins N`, and a strategy that outlives deaths",
    "gradient_allreduce_op": "gradients are averaged; for the sum multiply the learning rate by the number of workers",
    "torch_autocast": "compute the loss in torch.autocast",
    "tensor_parallel": "quorate.parallelize along the axis `tensor` of the mesh",
}
_ZERO_KEYS = {
    "elastic_checkpoint": "checkpoints can be loaded with any number of shards",
    "stage3_gather_16bit_weights_on_model_save": 'quorate.save("model.safetensors") writes the full parameters',
    "zero_hpz_partition_size": "no second copy of the shards; world.mesh(shards=N) keeps each replica on N workers",
    "zero_quantized_weights": "no equivalent: gathered parameters have the type of `precision`",
    "zero_quantized_gradients": "no equivalent inside a replica; compress= acts between replicas",
}
_ZERO_IGNORED = (
    *("bucket", "overlap_comm", "contiguous", "persistence", "prefetch", "live", "reuse", "scatter", "pin", "legacy"),
    *("ignore_unused", "round_robin", "allgather_partitions", "grad_norm", "trace_cache", "alignment", "granularity"),
)
"""Parts of the names of settings that have nothing to set here."""
_FP16 = {
    "hysteresis": "GradScaler lowers the scale at each overflow",
    "consecutive_hysteresis": "GradScaler lowers the scale at each overflow",
    "min_loss_scale": "GradScaler has no smallest scale",
    "auto_cast": "inputs are cast by `precision` or autocast",
    "fp16_master_weights_and_grads": "parameters and sums of gradients stay in float32",
}


@dataclass
class Migration:
    """The calls that a configuration becomes."""

    parallelize: dict[str, str] = field(default_factory=dict)
    """Arguments of `quorate.parallelize`; none if the model stays whole."""
    optimizer: str = "torch.optim.AdamW"
    arguments: dict[str, str] = field(default_factory=lambda: {"lr": "1e-3"})
    """Arguments of the optimizer beside the parameters."""
    distribute: str = ""
    accumulation: str = "1"
    """Backward passes in a step: a number, or an expression."""
    clip_norm: str | None = None
    batch: str = "batch_size"
    shards: str = "world.size"
    scaler: str | None = None
    """Arguments of GradScaler beside the device; None without one."""
    rate: list[str] = field(default_factory=list)
    """Lines that define the factor of the learning rate; none without a scheduler."""
    notes: list[str] = field(default_factory=list)
    """Settings that the code does not make, or that have no equivalent."""

    @property
    def code(self) -> str:
        """The calls, as Python."""
        lines = ["import math"] if any("math." in line for line in self.rate) else []
        lines += ["import torch", "import quorate", "", "world = quorate.join()"]
        if self.parallelize:
            arguments = ", ".join(f"{name}={value}" for name, value in self.parallelize.items())
            lines.append(f"model = quorate.parallelize(model, world.mesh(shards={self.shards}), {arguments})")
        else:
            lines.append("model = model.to(world.device)")
        arguments = ", ".join(["model.parameters()", *(f"{name}={value}" for name, value in self.arguments.items())])
        lines.append(f"optimizer = {self.optimizer}({arguments})")
        lines.append(f"optimizer = quorate.distribute(optimizer, model{self.distribute})")
        lines.append(f"loader = quorate.loader(dataset, batch_size={self.batch})")
        if self._is_computed:
            lines.append(f"accumulation = {self.accumulation}")
        if self.scaler is not None:
            lines.append(f"scaler = torch.amp.GradScaler(world.device.type{self.scaler})")
        if self.rate:
            if any("total_steps" in line for line in self.rate):
                passes = "" if self.accumulation == "1" else f" // {self._passes}"
                lines.append(f"total_steps = int(args.num_train_epochs * len(loader)){passes}")
            lines += ["", "", *self.rate, "", ""]
            lines.append("scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)")
        lines += ["", "for number, batch in enumerate(loader):", *self._step(), "optimizer.finish()"]
        return "\n".join(lines)

    @property
    def _is_computed(self) -> bool:
        return not self.accumulation.isdigit()

    @property
    def _passes(self) -> str:
        return "accumulation" if self._is_computed else self.accumulation

    def _step(self) -> list[str]:
        has_scaler = self.scaler is not None
        loss = "loss_of(model, batch)" + ("" if self.accumulation == "1" else f" / {self._passes}")
        back = f"scaler.scale({loss}).backward()" if has_scaler else f"({loss}).backward()"
        if "/" not in loss and not has_scaler:
            back = f"{loss}.backward()"
        clip = []
        if self.clip_norm is not None:
            clip = [f"torch.nn.utils.clip_grad_norm_(model.parameters(), {self.clip_norm})"]
        if has_scaler and clip:
            clip.insert(0, "scaler.unscale_(optimizer)")
        step = ["scaler.step(optimizer)", "scaler.update()"] if has_scaler else ["optimizer.step()"]
        whole = [back, *clip, *step, *(["scheduler.step()"] if self.rate else []), "optimizer.zero_grad()"]
        if self.accumulation == "1":
            return [f"    {line}" for line in whole]
        last = "accumulation - 1" if self._is_computed else str(int(self.accumulation) - 1)
        return [
            f"    if number % {self._passes} < {last}:",
            "        with optimizer.accumulate():",
            f"            {back}",
            "        continue",
            *(f"    {line}" for line in whole),
        ]


def migrated(config: Mapping[str, Any]) -> Migration:
    """Return what a configuration of DeepSpeed becomes. Raises `ConfigurationError` for values that it cannot have."""
    made = Migration()
    readers: dict[str, Callable[[Any], None]] = {
        "zero_optimization": lambda about: _zero(made, about),
        "gradient_clipping": lambda norm: _clip(made, norm),
        "optimizer": lambda about: _optimizer(made, about),
        "scheduler": lambda about: _scheduler(made, about),
        "bf16": lambda about: _precision(made, about, "bf16"),
        "bfloat16": lambda about: _precision(made, about, "bf16"),
        "fp16": lambda about: _precision(made, about, "fp16"),
    }
    _batches(made, config)
    order = {key: number for number, key in enumerate(readers)}
    for key, value in sorted(config.items(), key=lambda item: order.get(item[0], len(order))):
        if key in readers:
            try:
                readers[key](value)
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                raise _refusal(key, value, error) from None
        elif key not in _BATCHES and value not in (False, None, {}, {"enabled": False}):
            made.notes.append(f"{key}: {_NOTES.get(key, 'not known')}")
    if "args." in made.code:
        made.notes.append("auto: args are the TrainingArguments of Transformers, whose fields fill these values")
    return made


def _refusal(key: str, value: Any, error: object) -> ConfigurationError:
    return ConfigurationError(f"{key} is {json.dumps(value)}, which DeepSpeed does not take ({error})")


_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _batches(made: Migration, config: Mapping[str, Any]) -> None:
    """Infer the third of the three sizes from two, as DeepSpeed does: total = micro-batch * accumulation * workers."""
    sizes: dict[str, str | None] = {}
    for key in _BATCHES:
        value = config.get(key)
        try:
            sizes[key] = None if value is None else _expression(key, value, whole=True)
        except (TypeError, ValueError) as error:
            raise _refusal(key, value, error) from None
    total, batch, accumulation = sizes.values()
    if total is not None:
        made.notes.append(
            f"train_batch_size {total}: the batch of all workers follows from batch_size, accumulation and workers"
        )
    total = None if total == "auto" else total
    if total is not None and batch is not None and accumulation is None:
        accumulation = f"max(1, {total} // {batch} // world.size)"
    if total is not None and batch is None:
        batch = f"{total} // world.size" + (f" // {accumulation}" if accumulation not in (None, "1") else "")
    made.batch, made.accumulation = batch or made.batch, accumulation or made.accumulation


def _expression(key: str, value: Any, *, whole: bool = False) -> str:
    """Return a value as Python, and "auto" as the field of `TrainingArguments` that fills it."""
    if value == "auto":
        return _ARGUMENTS_OF_AUTO.get(key, "auto")
    if isinstance(value, list):
        return repr(tuple(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("it is a number")
    return str(int(value)) if whole else repr(value)


def _clip(made: Migration, norm: Any) -> None:
    if norm:
        made.clip_norm = _expression("gradient_clipping", norm if norm == "auto" else float(norm))


def _precision(made: Migration, about: Mapping[str, Any], key: str) -> None:
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[key]
    if about.get("enabled") == "auto":
        made.notes.append(f'{key}.enabled auto: if args.{key} is set, train in precision "{dtype}"')
        return
    if not about.get("enabled"):
        return
    if made.parallelize:
        made.parallelize["precision"] = f'"{dtype}"'
    else:
        made.notes.append(f"{dtype}: compute the loss in torch.autocast(world.device.type, torch.{dtype})")
    if key == "fp16":
        fixed = about.get("loss_scale") or 0
        scale = repr(float(fixed)) if fixed else f"2.0**{int(about.get('initial_scale_power', 16))}"
        window = 10**9 if fixed else int(about.get("loss_scale_window", 1000))
        made.scaler = f", init_scale={scale}, growth_interval={window}"
        if fixed:
            made.notes.append("fp16.loss_scale: GradScaler never raises it here, but lowers it at an overflow")
    known = {"enabled", "loss_scale", "initial_scale_power", "loss_scale_window"}
    made.notes += [f"{key}.{name}: {_FP16.get(name, 'no equivalent')}" for name in about if name not in known]


def _optimizer(made: Migration, about: Mapping[str, Any]) -> None:
    name = str(about["type"])
    params = about.get("params") or {}
    if name.lower() not in _OPTIMIZERS:
        made.optimizer = f"torch.optim.{name}"
        made.arguments = {
            key: repr(value) if isinstance(value, bool) else _expression(key, value) for key, value in params.items()
        }
        note = (
            "give it the matrices, and AdamW the rest"
            if name.lower() == "muon"
            else "taken from torch, as DeepSpeed does"
        )
        made.notes.append(f"optimizer.type {name}: {note}")
        return
    made.optimizer, strategy = _OPTIMIZERS[name.lower()]
    if name.lower() == "adam" and params.get("adam_w_mode") is False:
        made.optimizer = "torch.optim.Adam"
    made.arguments = {key: _expression(key, params[key]) for key in params if key in _ARGUMENTS}
    if made.optimizer in _DECAYING:
        made.arguments.setdefault("weight_decay", "0.0")
    handled: tuple[str, ...] = (*_ARGUMENTS, "adam_w_mode", "torch_adam")
    if strategy:
        settings = {ours: _expression(key, params[key], whole=True) for key, ours in _ONE_BIT.items() if key in params}
        written = "".join(f", {ours}={value}" for ours, value in settings.items())
        made.distribute += f', "{strategy}"{written}'
        made.notes += [f"optimizer.type {name}: {note}" for note in _NOTES_OF_ONE_BIT]
        handled = (*handled, *_ONE_BIT)
    made.notes += [f"optimizer.params.{key}: set it in the script" for key in params if key not in handled]


_NOTES_OF_ONE_BIT = (
    "steps are those of Adam, with the corrections for its beginning with 0, which DeepSpeed leaves out",
    'it takes neither shards (ZeRO) nor a GradScaler (fp16): beside these use compress="one-bit" in its place',
)


def _scheduler(made: Migration, about: Mapping[str, Any]) -> None:
    """Write the rates of DeepSpeed's scheduler as factors of the optimizer's own, for torch's LambdaLR."""
    kind, values = str(about["type"]), dict(about.get("params") or {})
    number = {key: _expression(key, value) for key, value in values.items() if not isinstance(value, bool | str)}
    number |= {key: _ARGUMENTS_OF_AUTO[key] for key, value in values.items() if value == "auto"}
    if kind in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        _warm_up(made, kind, number, is_linear=values.get("warmup_type") == "linear")
    elif kind == "OneCycle":
        _one_cycle(made, number)
        if values.get("cycle_momentum", True):
            made.notes.append("scheduler.params.cycle_momentum: betas stay as they are; torch's OneCycleLR cycles them")
    else:
        made.notes.append(f"scheduler.type {kind}: make it in the script, from torch.optim.lr_scheduler")


def _warm_up(made: Migration, kind: str, number: Mapping[str, str], *, is_linear: bool) -> None:
    warm_up, total = number.get("warmup_num_steps", "1000"), number.get("total_num_steps")
    if kind != "WarmupLR" and total is None:
        raise ValueError(f"{kind} needs total_num_steps")
    if kind == "WarmupCosineLR":
        low = number.get("warmup_min_ratio", "0.0")
    else:
        high = number.get("warmup_max_lr", "0.001" if kind == "WarmupDecayLR" else made.arguments.get("lr", "0.001"))
        made.arguments["lr"] = high
        low = number.get("warmup_min_lr", "0.0")
        low = low if _number_in(low) == 0 else f"{low} / {high}"
    ratio = "done / warm_up" if is_linear else "math.log(done + 1) / math.log(warm_up)"
    made.rate = [
        f"def rate(step):  # {kind} of DeepSpeed",
        f"    warm_up, done = max(2, {warm_up}), max(0, step - 1)  # DeepSpeed is one step late",
        "    if done < warm_up:",
        f"        return {ratio}" if _number_in(low) == 0 else f"        return {low} + (1 - {low}) * {ratio}",
    ]
    if kind == "WarmupLR":
        made.rate.append("    return 1.0")
    elif kind == "WarmupDecayLR":
        fall = f"max(0.0, ({total} - done) / max(1, {total} - warm_up))"
        made.rate.append(f"    return {fall}" if _number_in(low) == 0 else f"    return {low} + (1 - {low}) * {fall}")
    else:
        end = number.get("cos_min_ratio", "0.0001")
        made.rate.append(f"    part = min(1.0, (done - warm_up + 1) / max(1, {total} - warm_up))")
        made.rate.append(f"    return {end} + (1 - {end}) * (1 + math.cos(math.pi * part)) / 2")


def _one_cycle(made: Migration, number: Mapping[str, str]) -> None:
    low, high = number["cycle_min_lr"], number["cycle_max_lr"]
    up = number.get("cycle_first_step_size", "2000")
    down = number.get("cycle_second_step_size", up)
    made.arguments["lr"] = high
    made.rate = [
        "def rate(step):  # OneCycle of DeepSpeed",
        f"    up, down, low = {up}, {down}, {low} / {high}",
        "    if step <= up + down:",
        "        return low + (1 - low) * (step / up if step <= up else (up + down - step) / down)",
    ]
    decay, every = number.get("decay_lr_rate", "0"), number.get("decay_step_size", "0")
    if 0 in (_number_in(decay), _number_in(every)):
        made.rate.append("    return low")
    else:
        made.rate.append(f"    return low / (1 + {decay} * (step - up - down) / {every})")
    if {"cycle_first_stair_count", "cycle_second_stair_count"} & number.keys():
        made.notes.append("scheduler.params.cycle_first_stair_count: the rate has no stairs")


def _number_in(expression: str) -> float | None:
    try:
        return float(expression)
    except ValueError:
        return None


def _zero(made: Migration, about: Mapping[str, Any]) -> None:
    stage = about.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise ValueError("the stage is 0, 1, 2 or 3")
    if stage:
        made.parallelize["zero"] = str(stage)
    places = {kind: about.get(f"offload_{kind}") or {} for kind in ("param", "optimizer")}
    parameters, optimizer = (place.get("device", "none") for place in places.values())
    parameters = "cpu" if about.get("cpu_offload_params") else parameters
    optimizer = "cpu" if about.get("cpu_offload") else optimizer
    if stage and {parameters, optimizer} != {"none"}:
        kind = "all" if parameters != "none" else "disk" if optimizer == "nvme" else "optimizer"
        made.parallelize["offload"] = f'"{kind}"'
        if kind == "disk" and places["optimizer"].get("nvme_path"):
            made.parallelize["offload_folder"] = json.dumps(places["optimizer"]["nvme_path"])
        if parameters == "nvme":
            made.notes.append("zero_optimization.offload_param on nvme: parameters are kept in host memory")
        if kind == "all" and optimizer == "nvme":
            made.notes.append("zero_optimization.offload_optimizer on nvme: its state is kept in host memory")
        if "ratio" in places["optimizer"]:
            made.notes.append("zero_optimization.offload_optimizer.ratio: all of the state is offloaded")
    shards = about.get("mics_shard_size", -1)
    if stage == 3 and shards > 0:
        made.shards = str(int(shards))
    for key in about:
        if key in ("stage", "offload_param", "offload_optimizer", "cpu_offload", "cpu_offload_params"):
            continue
        if not key.startswith("mics_") and not any(word in key for word in _ZERO_IGNORED):
            made.notes.append(f"zero_optimization.{key}: {_ZERO_KEYS.get(key, 'no equivalent')}")


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
