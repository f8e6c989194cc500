"""The panels of options, and the examples, that `quorate VERB --help` shows."""

from __future__ import annotations

from collections.abc import Sequence

_PANELS = {
    "Workers": "workers sizes hosts ssh env silence no_fork",
    "Virtual workers": "virtual compute latency bandwidth",
    "The machine": "memory networks coding per_host host_network ways cores flops efficiency memory_bandwidth rates",
    "Strategy": "strategy strategies baseline settings attack tune servers",
    "Uneven workers": "imbalance imbalances pace",
    "Failures, and workers that join": "failures chaos restart max_joins leave_within recovery learners",
    "Model in pieces": "mesh zero offload shards fits limits no_overlap tries",
    "Data, length and quality": (
        "real workload_settings share seed seeds batch parameters steps epochs seconds target stops metric "
        "metric_pattern higher relevant evaluations timeout"
    ),
    "Several numbers of workers": "scale scaling price",
    "What the training costs": "examples tokens buy years upkeep occupancy power energy carbon",
    "Recorded runs": "like check records",
    "Records and progress": "name resume again picture log no_progress watch",
    "Other options": "is_module runs_as config print_config dry_run as_json help",
}
_BY_NAME = {name: panel for panel, names in _PANELS.items() for name in names.split()}
_OF_PLAN = {"bandwidth": "The machine", "latency": "The machine", "price": "What the training costs"}
"""The panels of `quorate plan` for options that mean something else elsewhere."""
_FEW = 9
"""The most options that are shown in one panel."""

EXAMPLES = {
    "run": (
        "quorate run -n 4 train.py --lr 0.1",
        "quorate run -n 4 --strategy eager-majority --imbalance one-of:100ms train.py",
        "quorate run --hosts first:4,second:4 train.py",
    ),
    "join": (
        "quorate join train-1",
        "quorate join runs/train-1 -n 2",
        "quorate join train-1 --timeout 300s",
    ),
    "compare": (
        "quorate compare digits",
        "quorate compare digits -n 4 --baseline ddp --strategy eager-solo",
        "quorate compare -n 4 --strategy quorum:wait_for=3 --metric accuracy train.py",
    ),
    "simulate": (
        "quorate simulate -n 8,64,512 --imbalance one-of:20ms",
        "quorate simulate --like train-1 --strategy quorum -n 64",
        "quorate simulate --failures mtbf=1y,repair=30min -n 100000 --learners 1,8",
    ),
    "plan": (
        "quorate plan -n 8 --memory 24GB --bandwidth 10Gbit train.py",
        "quorate plan -n 4 --memory 8GB --bandwidth 10Gbit --try 3 train.py",
        "quorate plan -n 8 --memory 80GB --bandwidth 400Gbit --flops 300T --batch 64 \\\n"
        "    --tokens 20G --price 2.5/h --buy 14000 \\\n"
        "    gpt:hidden=1024,layers=12,heads=16,sequence=1024,vocabulary=50000",
    ),
    "replay": (
        "quorate replay train-1",
        "quorate replay train-1 --virtual",
        "quorate replay runs/train-1 --name again",
    ),
    "report": (
        "quorate report compare-digits-1",
        "quorate report runs/train-1 --json",
        "quorate report compare-digits-1 --relevant 0.5%",
    ),
    "list": ("quorate list", "quorate list strategies", "quorate list --json"),
    "explain": (
        "quorate explain eager-solo",
        "quorate explain random:degree=3 -n 16",
        "quorate explain halving-doubling -n 6",
    ),
    "migrate": (
        "quorate migrate ds_config.json",
        "quorate migrate ds_config.json --json",
        "quorate migrate configs/ds_zero3.json",
    ),
    "trace": (
        "quorate trace train-1",
        "quorate trace train-1 --output timeline.json.gz",
        "quorate trace train-1 --json",
    ),
    "watch": ("quorate watch train-1", "quorate watch --text train-1", "quorate watch --port 8000 train-1"),
    "bench": (
        "quorate bench -n 4",
        "quorate bench --hosts first:2,second:2 all-reduce round",
        "quorate bench -n 2 --from 1MiB --to 256MiB --picture rates.svg",
    ),
    "tune": (
        "quorate tune -n 2 train.py",
        "quorate tune -n 4 --to fast.toml --picture parts.svg train.py",
        "quorate tune --virtual 8 --latency 2ms --bandwidth 10Gbit train.py",
    ),
    "pack": (
        "quorate pack model.safetensors",
        "quorate pack model.safetensors --output small.safetensors",
        "quorate pack model.safetensors --json",
    ),
    "unpack": (
        "quorate unpack model.packed.safetensors",
        "quorate unpack model.packed.safetensors --output model.safetensors",
        "quorate unpack small.safetensors --output full.safetensors --json",
    ),
    "doctor": (
        "quorate doctor --hosts first,second --bandwidth",
        "quorate doctor --memory --fits 24GB train.py",
        "quorate doctor --cost -n 64 train.py",
    ),
}


def panels(verb: str | None, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the `names` of a verb's options by the title of their panel, in the order of the panels."""
    if len(names) <= _FEW:
        return {"Options": list(names)}
    by_name = {**_BY_NAME, **_OF_PLAN} if verb == "plan" else _BY_NAME
    rows = {title: [name for name in names if by_name.get(name, "Other options") == title] for title in _PANELS}
    return {title: members for title, members in rows.items() if members}
