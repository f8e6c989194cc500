"""`distribute`: the user's optimizer, its class swapped for one whose `step` agrees with the other workers.

It also makes steps on the host for models whose optimizer is offloaded, and has data assigned alike under strategies
that compute the same batches on several workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, NoReturn, Unpack, cast

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import Distributed, Trained
from quorate.checkpoint.saving import saving
from quorate.core.arguments import one_sentence
from quorate.core.autocast import without_autocast
from quorate.core.device_copies import event_on
from quorate.core.errors import ConfigurationError
from quorate.core.redundancy import Redundancy
from quorate.core.servers import OwnServers
from quorate.core.strategy import Strategy
from quorate.data.common_draws import CommonDraws
from quorate.data.context import DataContext, Versioned
from quorate.data.step_division import StepDivision
from quorate.means.reduction import Reduction
from quorate.observe.backward import observe_backward
from quorate.observe.finite import OnNonfinite
from quorate.observe.memory_use import MemoryUse
from quorate.observe.pacing import Injected
from quorate.observe.step_times import Timing
from quorate.observe.watch import Watch
from quorate.replica.by_tensors import ShardBy, shard_by_of
from quorate.replica.optimizer_state import inner_optimizers
from quorate.replica.plain_step import NO_ARGUMENTS, OWN_STEP, StepArguments, own_step_of, scales_in_step, takes_closure
from quorate.replica.replica import sparse_tables_in, trained_in_order
from quorate.sharding.boundary import HostMemory
from quorate.sharding.host_step import HostStep
from quorate.sharding.mesh import Coordinates
from quorate.sharding.parallelize import Sharded, sharded
from quorate.strategies import strategies
from quorate.train import alone, pieces
from quorate.train.check_call import (
    EqualParameters,
    check_call,
    check_channel,
    check_forward_writes,
    check_optimizer,
    check_served_alone,
)
from quorate.train.chosen import Chosen
from quorate.train.combination import COUNTED, UNCONCERNED, Combination
from quorate.train.compatibility import check
from quorate.train.distributed_optimizer import DistributedOptimizer
from quorate.train.gains import measure_gains
from quorate.train.leaving import leaving_of
from quorate.train.loop import Loop, loops_of
from quorate.train.methods_beside import beside
from quorate.train.names import Settings, StrategyName
from quorate.train.never_stepped import NeverStepped, Undistributed
from quorate.train.pauses import pause_with_loaders
from quorate.train.recorded import plain_of, record, settings_of
from quorate.train.reduced import with_reduction
from quorate.train.relayout import take_forms
from quorate.train.schedules import follow
from quorate.train.serving import serve
from quorate.train.step_weight import Weight
from quorate.train.watched import COMPARE_EVERY, Watched
from quorate.train.wrappers import StillPlain, check_plain
from quorate.wire import current
from quorate.wire.current import Place
from quorate.wire.used import note_used

_LOOP = "_quorate_loop"
_STEPPED = "_quorate_never_stepped"


class Distributes:
    """The methods of a distributed optimizer; mixed in before its plain class."""

    _step_supports_amp_scaling = scales_in_step

    def step(self, closure: Callable[[], Any] | None = None, *arguments: Any, **named: Any) -> Any:
        """Make one step of the strategy with these arguments; return the result of the plain `step`."""
        if closure is not None and not callable(closure):
            if takes_closure(alone.wrapped_class(type(self))):
                raise ConfigurationError(f"step() takes a callable closure, not a {type(closure).__name__}")
            closure, arguments = None, (closure, *arguments)
        own: dict[str, Any] = self.__dict__
        own["_opt_called"] = True  # what schedulers look for
        return own[_LOOP].run_step(closure, StepArguments(arguments, named) if arguments or named else NO_ARGUMENTS)

    step.hooked = True  # type: ignore[attr-defined]  # the plain step runs the profiler and the user's step hooks
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in torch: every worker adds the same at the same step, and gets rank 0's numbers for it."""
        super().add_param_group(param_group)  # type: ignore[misc]
        _kept(self, _LOOP).group_added(self.param_groups[-1])  # type: ignore[attr-defined]

    def accumulate(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes only add to `.grad`; the first one outside averages the sum."""
        loop: Loop = _kept(self, _LOOP)
        return loop.accumulate()

    def weight(self, count: float | Tensor, *, full: float | None = None) -> None:
        """Let the next backward pass count as a mean over `count` terms: see `DistributedOptimizer.weight`."""
        loop: Loop = _kept(self, _LOOP)
        loop.count(count, full)

    @property
    def has_updated(self) -> bool:
        """Whether the newest `step()` was the last of its step: see `DistributedOptimizer.has_updated`."""
        kept = _kept(self, _LOOP).worker.kept
        return kept is None or kept.has_updated

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Clear gradients, and their counts, as in torch."""
        super().zero_grad(*arguments, **named)  # type: ignore[misc]
        loop: Loop | None = self.__dict__.get(_LOOP)
        if loop is None:
            return
        if loop.counts is not None:
            loop.counts.restart()
        if loop.replica.is_stepping:
            to_none = named.get("set_to_none", arguments[0] if arguments else True)
            loop.replica.cleared.note(loop.replica.every, to_none=to_none)
        elif not loop.worker.agrees_in_backward:
            loop.worker.means.ready.forget_touched()

    def finish(self) -> None:
        """Wait until all workers have ended and leave equal replicas; called at exit if it was not called before.

        Raises `ConfigurationError` where parameters were updated, and `step()` never called, and `Diverged` where
        replicas differ then.
        """
        _kept(self, _STEPPED).check()
        without_autocast(_kept(self, _LOOP).finish)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError("a distributed optimizer cannot be copied; copy its state_dict() instead")

    def __reduce__(self) -> Any:
        plain = alone.wrapped_class(type(self))
        return (alone.plain_again, (plain, self.__getstate__()))


def _kept(optimizer: Any, name: str) -> Any:
    """Return an attribute of the optimizer; wrappers that pose as its class (Lightning's Fabric) have `optimizer`."""
    own: dict[str, Any] = optimizer.__dict__
    return own[name] if name in own else _kept(optimizer.optimizer, name)


@one_sentence({"model": "it is the torch.nn.Module whose parameters the optimizer has"})
def distribute(
    optimizer: Optimizer,
    model: Module,
    strategy: Strategy | StrategyName = "all-reduce",
    *,
    name: str | None = None,
    with_one_worker: Literal["bypass", "algorithm"] = "bypass",
    on_nonfinite: OnNonfinite = "warn",
    compare_every: int = COMPARE_EVERY,
    weight: Weight = "equal",
    shard_by: ShardBy | None = None,
    **settings: Unpack[Settings],
) -> DistributedOptimizer:
    """Let `optimizer` agree with the optimizers of the other workers; return it, its class swapped for a subclass.

    The model is not wrapped: it provides names and buffers. Every worker gets rank 0's parameters, buffers and
    optimizer state. All workers distribute several optimizers in the same order. With one worker the optimizer remains
    as it is, bit for bit.

    Args:
        optimizer: Any `torch.optim.Optimizer`.
        model: The module that has its parameters, or some of them.
        strategy: A strategy (`quorate.strategies.EagerSolo(max_staleness=4)`), or the name of one, with its settings
            beside it. `quorate run --strategy` takes precedence.
        name: The name of this optimizer in checkpoints, if there are several.
        with_one_worker: "algorithm" runs the strategy in a world of one worker as well, for study.
        on_nonfinite: The treatment of a gradient that is NaN or infinite, of which all workers learn together. "warn"
            names its worker (of large tensors a sample is checked), and "ignore" checks nothing. "skip" skips the
            update as well, and "raise" ends the training with `NotFinite`; both check every number, in one pass over
            the gradient. With a GradScaler, the scaler handles it.
        compare_every: The number of rounds between comparisons of replicas that must be equal, which are also compared
            at the end; 0: never. Options of the optimizer are compared in every step, and samples of the replicas every
            16 rounds. `Diverged` names what differs, and where.
        weight: The weight of a worker in means over all workers: "equal", as in torch DDP, "examples" or "tokens".
            "examples" is the number it has loaded from `quorate.loader` for the step. "tokens" needs batches that have
            a number of tokens as an attribute `tokens` (not in rounds of gradients).
        shard_by: With a model in shards, how the workers of a replica divide the optimizer's state. "rows" divides
            each parameter, for optimizers that treat all numbers alike (AdamW). "tensors" gives each full tensor to an
            owner that steps it, for others (Muon, Adafactor). None: by the class of the optimizer, which is tried on
            small tensors if it is not one of torch's.
        settings: Beside a name, the settings of the strategy. Beside either, those of means. `compress` names the codec
            of gradients (under `diloco`, of changes of the parameters), with the codec's settings beside it. `reduce`,
            `error_feedback`, `error_decay`, `dense` and `dense_below` are in docs/howto/compress.md. `on_anomaly` is
            the treatment of a gradient far out of proportion to the others, under `all-reduce`: "warn" names its
            worker, "skip" leaves it out of the mean as well (docs/howto/wrong-gradients.md). `reduce_dtype="bfloat16"`
            sums gradients of bfloat16 parameters as they are, in place of float32 (docs/howto/gpus.md). `autotune=True`
            finds the fastest parts of gradients while training, and `part_bytes` and others set them
            (docs/howto/tuning.md).

    Returns:
        The optimizer, which now has `accumulate()` and `finish()`.

    Raises:
        ConfigurationError: `quorate.join()` was not called, a strategy or setting is unknown, or the optimizer is
            distributed already. Also if the model has none of the optimizer's parameters or is in torch's DDP or FSDP.
            It is raised on every worker if models, optimizers, their options or strategies differ.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = quorate.distribute(optimizer, model, "quorum", wait_for=1)
        >>> torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        >>> optimizer.step()
    """
    place = current.here()
    if isinstance(optimizer, DistributedOptimizer):
        raise ConfigurationError("this optimizer is already distributed; call distribute once per optimizer")
    check_optimizer(optimizer)
    if with_one_worker not in ("bypass", "algorithm"):
        raise ConfigurationError(f'with_one_worker="{with_one_worker}" is unknown; known: algorithm, bypass')
    check_call(optimizer, model, strategy, name)
    watched = Watched(on_nonfinite=on_nonfinite, compare_every=compare_every, weight=weight, shard_by=shard_by)
    spread = sharded(model, place, optimizer)
    override, has_own_servers = place.context(Chosen), bool(place.context(OwnServers).ranks)
    data = place.context(DataContext)
    channel = str(override.optimizers + 1) if name is None else name
    if spread is None:
        take_forms(place.wire, channel, model, optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if spread is None:
        check_plain(model, parameters)
    baseline = None if override.strategy_name is None else override.baselines.get(override.strategy_name)
    label, chosen, reduction = override.strategy_name, None, Reduction()
    if baseline is None:
        label, chosen, reduction = _chosen(strategy, dict(settings), override, has_own_servers=has_own_servers)
    watching = observe_backward(place)
    plain: Any = type(optimizer)
    own_step = own_step_of(optimizer)
    sparse_tables = sparse_tables_in(model, trained_in_order(parameters, model))
    combination = Combination(
        label=label or "",
        strategy=chosen or UNCONCERNED,
        reduction=reduction,
        weight=weight,
        optimizer=plain,
        inner_optimizers=[type(inner).__name__ for inner in inner_optimizers(optimizer).values()],
        optimizers_before=override.optimizers,
        workers=place.wire.size,
        buffer=next((name for name, _ in model.named_buffers()), None),
        sparse_table=next(iter(sparse_tables), None),
        has_sparse_momentum=_has_momentum_of(optimizer, sparse_tables.values()),
        is_baseline=baseline is not None,
        is_capturable=any(group.get("capturable") for group in optimizer.param_groups),
        asks_to_outlive=_asks_to_outlive(strategy, {**settings, **override.settings}),
        has_own_step=own_step is not None,
        is_foreign=getattr(plain, "is_foreign", False),
        has_own_servers=has_own_servers,
        has_loaders=data.made > 0,
        has_own_batches=data.is_of_script,
        others_repeat=data.redundancy.is_there,
        others_keep=data.division is not None,
    )
    if spread is not None:
        combination = pieces.in_pieces(combination, spread)
    check(combination, "servers", "offload")
    host = None if spread is None else host_step_of(spread, optimizer, place)
    _scale_learning_rates(optimizer, override.learning_rate_factor)
    override.optimizers += 1
    check_channel(channel, place.context(Trained))
    swapped: Any = optimizer
    saving(place)  # what is left to be written is written last
    said = settings_of(chosen) | {name: plain_of(value) for name, value in reduction.said.items()}
    entry: dict[str, Any] = {} if host is None else {"ahead": host.ahead}
    if spread is not None:
        entry |= {"coordinates": spread.coordinates, "pipeline": spread.pipeline}
        entry |= pieces.delayed_gradients(spread, optimizer, watching)
    accumulates = getattr(chosen, "micro_batches", 1) > 1
    if place.wire.max_size == 1 and with_one_worker == "bypass" and not accumulates:
        swapped.__class__ = alone.class_of(alone.Alone if host is None else alone.AloneOnHost, plain)
        if spread is not None:
            optimizer.register_step_post_hook(lambda *_: spread.coordinates.traffic.forget())
        if host is not None:
            alone.steps_on_host(optimizer, host)
            entry["pause"] = host.catch_up
        leaving_of(place, lambda: loops_of(place)).begins()
        if chosen is not None and chosen.client_terms is not None:
            data.bypassed = label
        if place.context(Timing).recorder is not None or place.context(Injected).pacing is not None:
            Watch(optimizer, place, channel)
    elif baseline is not None:
        swapped.__class__ = alone.class_of(alone.Compared, plain)
        optimizer.__dict__[alone.WORKER] = baseline(model)
        Watch(optimizer, place, channel, model)
    else:
        assert chosen is not None and label is not None
        if spread is not None:
            shard_by = shard_by_of(plain, optimizer.param_groups, shard_by)
            combination = dataclasses.replace(combination, shard_by=shard_by)
        check(combination)
        patched = optimizer.__dict__.pop("step", None)  # an earlier scheduler froze the plain step into the instance
        if own_step is not None:
            optimizer.__dict__[OWN_STEP] = own_step
        swapped.__class__ = alone.class_of(Distributes, plain, beside)
        try:
            check_served_alone(chosen, parameters, place.context(Trained))
            if spread is None and chosen.replicas == "equal" and place.wire.max_size > 1:
                check_forward_writes(model, parameters, label, place.context(EqualParameters))
            named = dataclasses.replace(watched, strategy=label, reduction=reduction)
            if spread is not None:
                named = dataclasses.replace(named, host=host, shard_by=shard_by)
                chosen, named = pieces.as_pieces(spread, chosen, named)
                pieces.check_in_shards(model, spread.coordinates, parameters)
                pieces.check_trained_stage(spread.coordinates, parameters)
            if place.context(OwnServers).has(place.wire.rank):
                serve(optimizer, plain, model, chosen, place, channel, named)
            if chosen.batch == "kept":
                divide_steps(place, getattr(chosen, "micro_batches", 1), None if spread is None else spread.coordinates)
            may_count = partial(check, dataclasses.replace(combination, weight=COUNTED), "weight")
            loop = Loop(optimizer, plain, model, chosen, place, channel, named, may_count)
            measure_gains(optimizer, loop.worker, watching)
            deal_out(combination.redundancy, place, loop.worker)
        except BaseException:
            swapped.__class__ = plain
            optimizer.__dict__.pop(OWN_STEP, None)
            if patched is not None:
                optimizer.__dict__["step"] = patched
            raise
        optimizer.__dict__[_LOOP] = loop
        entry |= {"worker": loop.worker, "pause": loop.pause, "resume": loop.resume}
        entry["laid_out"] = loop.relayout.laid_out
        follow(optimizer, loop.worker.schedules)
        optimizer.__dict__[alone.WORKER] = loop.worker
        stepped = optimizer.__dict__[_STEPPED] = NeverStepped(loop.worker, data, lambda: loops_of(place))
        if spread is not None:
            entry["owned"] = pieces.lay_out_steps(optimizer, channel, loop.replica, spread, named)
        looks = (
            StillPlain(loop.replica)
            if spread is None
            else pieces.AfterPieces(loop.replica, spread.coordinates, loop.worker.timer)
        )
        watching.add(looks, stepped)
        place.leaving += [loop.finish, stepped.check]
        data.client_terms = chosen.client_terms or data.client_terms
        if chosen.waits or data.redundancy.by_round:
            pause_with_loaders(place)
        else:
            data.nobody_waits = True
        if chosen.batch == "kept":
            pause_with_loaders(place)
    if override.label is None:
        note_used(place.wire.board, "strategy")
    override.label = override.label or label
    place.context(Undistributed).close()
    kept = Distributed(channel, optimizer, model, label, said, **entry)
    place.context(Trained).add(kept)
    record(place, kept, chosen)
    place.context(CommonDraws).part()
    for begin in override.begun:
        begin(kept)
    return cast("DistributedOptimizer", optimizer)


def _asks_to_outlive(strategy: str | Strategy, settings: Mapping[str, Any]) -> bool:
    """Return whether `on_death="continue"` was chosen beside the strategy, or in it against its default."""
    if "on_death" in settings or isinstance(strategy, str):
        return settings.get("on_death") == "continue"
    default = next(field.default for field in dataclasses.fields(strategy) if field.name == "on_death")
    return strategy.on_death == "continue" != default


def _has_momentum_of(optimizer: Optimizer, tables: Iterable[Tensor]) -> bool:
    ids = set(map(id, tables))
    return any(group.get("momentum") and ids & set(map(id, group["params"])) for group in optimizer.param_groups)


def _scale_learning_rates(optimizer: Optimizer, factor: float | None) -> None:
    if factor is None or factor == 1.0:
        return
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise ConfigurationError(
            "quorate.distribute scales the learning rates as the command line says, but a scheduler created before it "
            "keeps the old rates; create the scheduler after quorate.distribute"
        )
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor


def _chosen(
    strategy: str | Strategy, settings: dict[str, Any], override: Chosen, *, has_own_servers: bool
) -> tuple[str, Strategy, Reduction]:
    """Return the name, the strategy and its reduction, as the script says, or the command line instead."""
    raw, made = {**settings, **override.settings}, None
    if isinstance(strategy, Strategy):
        own = sorted(settings.keys() & {field.name for field in dataclasses.fields(strategy)})
        if own:
            raise ConfigurationError(
                f"settings {own} stand beside a strategy object; put them into the object, or give the strategy's name"
            )
    if override.strategy_name is not None:
        label, raw = strategies.registered(override.strategy_name), dict(override.settings)
    elif isinstance(strategy, Strategy):
        label, made = strategies.name_of(type(strategy)) or type(strategy).__name__, strategy
    else:
        label = strategies.registered(strategy)
    kind: Any = strategies.get(label) if made is None else type(made)
    check(Combination(label=label, strategy=kind, has_own_servers=has_own_servers), "servers")
    return label, *with_reduction(kind, raw, label, made)


def host_step_of(spread: Sharded, optimizer: Optimizer, place: Place) -> HostStep | None:
    """Return the step on the host; None where the optimizer's own step does it."""
    how = spread.offload
    if how is None:
        return None
    boundaries, plain = place.context(MemoryUse).boundaries, type(optimizer)
    if not any(boundary is how.boundary for boundary in boundaries):  # two optimizers may have one model
        boundaries.append(how.boundary)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_all = how.where == "all"
    if is_all and not how.delays and all(p.dtype.itemsize > 2 for p in parameters):
        return None  # the optimizer finds everything on the host
    is_pinned = any(event_on(p.device) is not None for p in parameters)
    memory = HostMemory(how.folder, is_pinned=is_pinned)
    chosen = {"delays": how.delays, "corrects": how.corrects, "crosses": not is_all}
    return HostStep(optimizer, plain, how.boundary, memory, **chosen)


def divide_steps(place: Place, each: int, coordinates: Coordinates | None) -> None:
    """Divide the steps of all workers, or of all replicas, so that their batch is kept after a death."""
    data, of = place.context(DataContext), (place.wire.rank, place.wire.size, each)
    if coordinates is None:
        data.division = StepDivision(*of)
    else:
        replicas = coordinates.across.size
        parts = [ranks[coordinates.in_replica] for ranks in coordinates.workers[:replicas]]
        data.division = StepDivision(coordinates.across.rank, replicas, each, parts)
    data.meetings.append(data.division.check_meeting)


def deal_out(redundancy: Redundancy, place: Place, worker: Versioned) -> None:
    """Let loaders give workers the same batches, where `redundancy` says so; each example is counted by one worker."""
    data, wire = place.context(DataContext), place.wire
    if not redundancy.is_there:
        return
    data.redundancy, data.versioned = redundancy, worker
    if redundancy.groups:
        group, before = (redundancy.group_of(rank, wire.size) for rank in (wire.rank, wire.rank - 1))
        data.repeats = wire.rank > 0 and group == before
