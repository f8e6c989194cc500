"""torch's own hooks of DDP's communication, as settings of `quorate.distribute`."""

from __future__ import annotations

from typing import Any

from quorate.core.errors import ConfigurationError

_MODULE = "torch.distributed.algorithms.ddp_comm_hooks."
_HALF: dict[str, dict[str, object]] = {
    "allreduce_hook": {},
    "fp16_compress_hook": {"compress": "half", "dtype": "float16", "dense_below": 0},
    "bf16_compress_hook": {"compress": "half", "dtype": "bfloat16", "dense_below": 0},
}
_POWER = ("powerSGD_hook", "batched_powerSGD_hook")


def settings_of_hook(state: Any, hook: Any) -> dict[str, object]:
    """Return the settings that compress as the hook does. Raises `ConfigurationError` for one that is not torch's."""
    name, module = getattr(hook, "__name__", type(hook).__name__), getattr(hook, "__module__", "")
    if module.startswith(_MODULE) and name in _HALF:
        return dict(_HALF[name])
    if module.startswith(_MODULE) and name in _POWER:
        return {
            "compress": "power-sgd",
            "rank": state.matrix_approximation_rank,
            "start": state.start_powerSGD_iter,
            "min_rate": state.min_compression_rate,
            "warm_start": state.warm_start,
        }
    raise ConfigurationError(
        f"register_comm_hook was given {name}, and under a strategy of quorate gradients are not DDP's buckets; of "
        f"torch's hooks {', '.join((*_HALF, *_POWER))} are known: give another codec with --set compress=NAME"
    )
