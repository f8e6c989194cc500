"""Which choices of a training go together: one table of the combinations that are refused, and why.

`check` raises for the first of `RULES` that refuses a combination. Nothing here imports torch, so that the command line
can ask before it starts anything. Checks that need the numbers of a run, such as sizes of a world, stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorate.core.axes import Axes
from quorate.core.errors import ConfigurationError
from quorate.train.combination import _BY_NUMBER, COUNTED, UNCONCERNED, Combination

if TYPE_CHECKING:
    from quorate.core.strategy import Strategy
    from quorate.means.reduction import Reduction


_GRADIENTS_OF_ALL = ("all", "gradients")
_RULED = (("rounds", "gradients"), ("all", "deltas"))
"""Whom a step meets, and what codecs may compress (see `Strategy`): where a rule may take the place of a mean."""
_SUM_THEMSELVES = ("rounds", "servers")
_COUNTS_INSTEAD = {
    "neighbours": "what neighbours count is said by the topology",
    "asks": "two workers that meet count the same",
    "servers": "what a worker counts on servers is said by the strategy's settings",
    "nobody": "each worker takes its own steps, and nothing is averaged",
}
_ADA_SCALE = "quorate.optim.ada_scale.AdaScale"


@dataclass(frozen=True)
class Rule:
    """An option that does not go with others: when a combination, with its strategy and its reduction, is refused."""

    feature: str
    refuses: Callable[[Combination, Strategy, Reduction], object]
    sentence: str
    """The message of the error, for `str.format`."""

    def words(self, combination: Combination) -> str:
        """Return the message for a combination that is refused."""
        settings, optimizer = combination.reduction.settings, combination.optimizer
        copies = combination.coded_apart or next((tuple(names) for names, _ in combination.shared), ())
        return self.sentence.format(
            c=combination,
            label=combination.label,
            settings=settings,
            compress=f'compress="{settings.compress}"',
            reduce=f'reduce="{settings.reduce}"',
            parts=", ".join(f"{name}={value!r}" for name, value in combination.reduction.parts.items()),
            kind="the optimizer" if optimizer is None else optimizer.__name__,
            inner=", ".join(combination.inner_optimizers),
            copies=f"{' and '.join(copies)} are one parameter that lies in several stages",
            instead=_COUNTS_INSTEAD.get(combination.strategy.meets),
            by_number=", ".join(_BY_NUMBER),
        )


def _sparse(strategy: Strategy) -> str:
    from quorate.core.strategy import sparse_gradients_of

    return sparse_gradients_of(strategy)


def refusals(combination: Combination, *features: str) -> Iterator[Rule]:
    """Yield the rules, of these features only if any are named, that refuse `combination`."""
    chosen = combination, combination.strategy, combination.reduction
    return (rule for rule in RULES if (not features or rule.feature in features) and rule.refuses(*chosen))


def check(combination: Combination, *features: str) -> None:
    """Raise `ConfigurationError` for the first of the `refusals`."""
    for rule in refusals(combination, *features):
        raise ConfigurationError(rule.words(combination))


RULES = (
    Rule("attack", lambda c, s, r: r.settings.attack
         and not (s.meets == "all" and s.compresses in ("gradients", "deltas")),
         'attack="{settings.attack}" cannot be combined with {label}: attacks change gradients (all-reduce, robust), '
         "and how far workers went (diloco)"),
    Rule("on_anomaly", lambda c, s, r: r.settings.on_anomaly != "ignore"
         and (s.meets, s.compresses) != _GRADIENTS_OF_ALL,
         'on_anomaly="{settings.on_anomaly}" cannot be combined with {label}: it compares the gradients of a mean '
         "of all workers (all-reduce)"),
    Rule("on_anomaly", lambda c, s, r: r.settings.on_anomaly != "ignore" and not r.forms_means,
         'on_anomaly="{settings.on_anomaly}" watches plain means; with {compress} and {reduce} leave it out: a rule '
         "finds what is wrong by itself, and codes of gradients are no gradients"),
    Rule("reduce_dtype", lambda c, s, r: r.settings.reduce_dtype != "float32"
         and not (c.averages_gradients and c.axes is None),
         'reduce_dtype="{settings.reduce_dtype}" cannot be combined with {label} or with pieces: it is for means '
         "of the gradients of whole models in each step (all-reduce)"),
    Rule("reduce_dtype", lambda c, s, r: r.settings.reduce_dtype != "float32"
         and (r.codec or r.settings.reduce != "auto"),
         'reduce_dtype="{settings.reduce_dtype}" is for plain sums; leave out {compress} and {reduce}'),
    Rule("parts", lambda c, s, r: r.parts and not (c.averages_gradients and c.axes is None),
         "{parts} cannot be combined with {label} or with pieces: it cuts the gradients of whole models, which all "
         "workers exchange in each step (all-reduce)"),
    Rule("parts", lambda c, s, r: r.parts and (r.codec or r.settings.reduce != "auto" or r.settings.attack
                                               or r.settings.on_anomaly != "ignore"),
         "{parts} needs sums of plain numbers; leave out {compress}, {reduce}, attacks and on_anomaly"),
    Rule("parts", lambda c, s, r: r.arranges and s is not UNCONCERNED and s.on_death == "continue",
         '{parts} changes the parts of sums while training, and with on_death="continue" a death may interrupt them; '
         "leave one of them out"),
    Rule("parts", lambda c, s, r: r.arranges and c.optimizers_before,
         "{parts} arranges the gradients of one optimizer; put all parameters into one, in groups"),
    Rule("reduce", lambda c, s, r: r.settings.reduce == "adasum" and r.codec,
         "{reduce} needs gradients as they are, for their scalar products; leave out {compress}"),
    Rule("reduce", lambda c, s, r: r.rule and r.is_of_gradients,
         "{reduce} needs the vector of each worker, and {settings.compress} forms only their sum; leave one of them "
         "out"),
    Rule("reduce", lambda c, s, r: r.rule and r.keeps_few and not r.rule.is_linear,
         "{reduce} works on each coordinate by itself, and {compress} leaves most coordinates of each worker 0, "
         "different ones for each: the result would be 0 nearly everywhere. Choose a rule on full vectors (krum, "
         "multi-krum, geometric-median, centered-clipping), or another codec"),
    Rule("reduce", lambda c, s, r: r.is_of_gradients and r.settings.reduce != "auto",
         "{settings.compress} forms its sums in its own way; leave out {reduce}"),
    Rule("reduce", lambda c, s, r: r.codec and s.compresses == "momenta"
         and r.settings.reduce not in ("auto", "two-phase"),
         "{reduce} cannot be combined with {label}, whose codes are summed in two phases; leave reduce out"),
    Rule("reduce", lambda c, s, r: r.keeps_more
         and (r.settings.reduce in ("two-phase", "hierarchical") or s.compresses == "momenta"),
         "{settings.compress} remembers more than what it leaves out, and owners of pieces cannot; leave out {reduce}"),
    Rule("reduce", lambda c, s, r: s.redundancy and s.meets == "all" and r is not UNCONCERNED and not r.rule,
         "{reduce} cannot be combined with {label}, which compares or decodes gradients as they are; leave reduce out"),
    Rule("reduce", lambda c, s, r: r.codec and r.rule and (s.meets, s.compresses) != _GRADIENTS_OF_ALL,
         "{reduce} beside {compress} cannot be combined with {label}: a rule needs the codes of all workers in each "
         "step, which only all-reduce and robust exchange; leave out reduce or compress"),
    Rule("reduce", lambda c, s, r: r.codec and s.compresses == "differences" and r.settings.reduce != "auto",
         "{reduce} cannot be combined with {label}: it selects how codes of all workers are summed; here they go to "
         "neighbours"),
    Rule("reduce", lambda c, s, r: not r.codec and (s.meets, s.compresses) in _RULED and r.rule and r.rule.has_centre,
         "{reduce} cannot be combined with {label}: it starts from its latest result, which exists only where all "
         "workers form means of gradients (all-reduce); choose another rule"),
    Rule("reduce", lambda c, s, r: not r.codec and r.settings.reduce != "auto" and s.meets != "all"
         and not (r.rule and (s.meets, s.compresses) in _RULED),
         "{reduce} cannot be combined with {label}: it selects how sums over all workers are formed; it forms none"),
    Rule("reduce", lambda c, s, r: not r.codec and r.is_adaptive and s.compresses != "gradients"
         and not (r.rule and (s.meets, s.compresses) in _RULED),
         "{reduce} is for gradients (all-reduce); {label} does not average gradients"),
    Rule("reduce", lambda c, s, r: c.redundancy.batches > 1 and r.rule and r.rule.name != "Mean",
         "{reduce} cannot be combined with a cyclic code, which decodes the mean; leave reduce out"),
    Rule("compress", lambda c, s, r: s.redundancy and s.meets == "all" and r.codec,
         "{compress} cannot be combined with {label}, which compares or decodes gradients as they are; leave it out"),
    Rule("compress", lambda c, s, r: r.codec and s.compresses == "nothing",
         "{compress} cannot be combined with {label}. Codecs write small gradients (all-reduce, quorum), deltas "
         "(diloco, decoupled-diloco; diloco with outer_rate=1 and outer_momentum=0 is local-sgd), and "
         "differences between neighbours (choco-sgd, dcd-psgd, ecd-psgd)"),
    Rule("compress", lambda c, s, r: r.codec and s.meets in _SUM_THEMSELVES
         and (r.is_of_gradients or r.settings.reduce != "auto"),
         "{compress} with reduce={settings.reduce!r} is for sums of all workers (all-reduce); under {label} "
         "{c.strategy.meets} form the sums: choose a codec, and leave reduce out"),
    Rule("compress", lambda c, s, r: r.codec and s.meets in _SUM_THEMSELVES and r.keeps_more,
         "{compress} remembers more than what it leaves out, which {c.strategy.meets} do not support; take another"),
    Rule("compress", lambda c, s, r: s.compresses in ("deltas", "momenta") and r.is_of_gradients,
         "{compress} is for gradients (all-reduce); use a codec with {label}"),
    Rule("compress", lambda c, s, r: r.codec and getattr(s, "after", 0),
         "{compress} cannot be combined with synchronous steps before the local ones; leave after=0"),
    Rule("compress", lambda c, s, r: r.codec and s.compresses == "differences" and (r.is_of_gradients or r.keeps_more),
         "{compress} cannot be combined with {label}: it is for gradients, and {label} writes differences small; "
         "choose a codec that remembers nothing"),
    Rule("compress", lambda c, s, r: r.is_of_gradients and r.settings.error_feedback is False,
         "{settings.compress} does not work without error feedback; leave error_feedback out"),
    Rule("compress", lambda c, s, r: s.compresses == "differences" and r.settings.error_feedback is not None,
         "error_feedback={settings.error_feedback} cannot be combined with {label}: the next difference has what is "
         "left out; leave it out"),
    Rule("compress", lambda c, s, r: r.is_of_gradients and r.settings.error_decay != 1,
         "{settings.compress} keeps its errors undiminished; leave error_decay out"),
    Rule("compress", lambda c, s, r: r.settings.error_decay != 1 and not r.feeds_back,
         "{settings.compress} keeps no errors that could decay; leave error_decay out"),
    Rule("compress", lambda c, s, r: r.settings.error_decay != 1 and r.settings.reduce in ("two-phase", "hierarchical"),
         "{reduce} hands errors on from worker to worker, and they are not to fade on the way; leave one out"),
    Rule("compress", lambda c, s, r: (s.meets in _SUM_THEMSELVES or s.compresses == "differences")
         and r.settings.error_decay != 1,
         "error_decay={settings.error_decay} cannot be combined with {label}: what a codec leaves out is kept "
         "as it is; leave it out"),
    Rule("compress", lambda c, s, r: r.settings.clip_codes
         and (s.meets != "all" or r.is_of_gradients or getattr(r.codec, "is_linear", True) or r.rule
              or r.settings.reduce in ("two-phase", "hierarchical")),
         "clip_codes compares the decoded vectors of all workers, and {compress} with {reduce} under {label} sums them "
         "in another way. Leave clip_codes out, or take a codec such as tiled-top-k under all-reduce or diloco"),
    Rule("optimizer", lambda c, s, r: c.needs_closure and not c.averages_gradients,
         "{kind} asks for the loss several times a step, in a closure, and {label} for one gradient; use all-reduce"),
    Rule("optimizer", lambda c, s, r: c.has_own_step and c.divides_optimizer,
         "a step was put on this {kind} itself, and servers and models in pieces make steps with optimizers of their "
         "own, which have the step of the class. Write it as the step of a subclass"),
    Rule("optimizer", lambda c, s, r: c.inner_optimizers and c.divides_optimizer,
         "{kind} is around another optimizer ({inner}), whose state would be lost: servers and models in pieces divide "
         "only that of {kind}. Distribute the inner one alone, or train {kind} with full replicas under another "
         "strategy, such as all-reduce"),
    Rule("optimizer", lambda c, s, r: c.is_a(_ADA_SCALE) and not c.averages_gradients,
         "AdaScale compares gradients with the mean of all workers, and {label} forms no such mean; use all-reduce"),
    Rule("optimizer", lambda c, s, r: c.is_a(_ADA_SCALE) and c.axes,
         "AdaScale cannot be combined with a model in shards; use LARS or LAMB there"),
    Rule("optimizer", lambda c, s, r: c.is_a(_ADA_SCALE) and c.has_grad_scaler,
         "AdaScale cannot be combined with a GradScaler, whose scale changes; use bfloat16"),
    Rule("optimizer", lambda c, s, r: c.optimizer and s.optimizers and not any(map(c.is_a, s.optimizers)),
         "{label} is for {c.known_optimizers}, whose momentum it encodes and whose variance it freezes, and not for "
         'a {kind}. For others compress gradients: all-reduce with compress="one-bit"'),
    Rule("optimizer", lambda c, s, r: c.is_foreign and getattr(s, "momentum", None) == "worker",
         '{label} with momentum="worker" lets each worker keep the momentum of its gradients, which is known of '
         "optimizers of torch, and not of {kind} of another framework; choose another momentum"),
    Rule("optimizer", lambda c, s, r: s.compresses == "momenta" and c.has_grad_scaler,
         "{label} exchanges momenta, and under a GradScaler gradients have another scale in each step; use bfloat16"),
    Rule("shrink", lambda c, s, r: c.shrinks and s.compresses == "momenta",
         "{c.shrinks} cannot be combined with {label}, whose frozen variances and scales are of the numbers as they "
         'were. Take all-reduce with compress="one-bit" and reduce="two-phase", which goes on with the numbers that '
         "are left"),
    Rule("shrink", lambda c, s, r: c.shrinks.endswith("cluster()") and c.is_a("torch.optim.Muon"),
         "{c.shrinks} cannot be combined with Muon, which steps on matrices, as shared values are vectors; use AdamW"),
    Rule("shrink", lambda c, s, r: c.shrinks.endswith("low_rank()") and c.is_a("torch.optim.lbfgs.LBFGS"),
         "{c.shrinks} cannot be combined with LBFGS, which remembers gradients of the layers as they were; use SGD or "
         "AdamW"),
    Rule("pruning", lambda c, s, r: c.prunes and (c.axes or c.offloads),
         "quorate.shrink.prune is for whole models on each worker, and not for models in pieces or optimizers on the "
         "host; leave one of them out"),
    Rule("pruning", lambda c, s, r: c.prunes and c.is_baseline,
         "quorate.shrink.prune cannot be combined with {label}, whose library sends the gradients; use all-reduce"),
    Rule("sparse gradients", lambda c, s, r: c.sparse_table and _sparse(s) == "refused",
         "the gradient of {c.sparse_table} is sparse, and {label} forms vectors of gradients, which have no sparse "
         "numbers. Build the layer with sparse=False, or choose all-reduce, quorum or parameter-server, which exchange "
         "rows, or a strategy that exchanges parameters, such as local-sgd"),
    Rule("sparse gradients", lambda c, s, r: c.sparse_table and _sparse(s) in ("rows", "both")
         and (r.rule or r.is_adaptive or r.settings.attack or r.settings.on_anomaly != "ignore"),
         "the gradient of {c.sparse_table} is sparse, and its rows are averaged as they are, without an aggregation "
         "rule, adasum, attack or on_anomaly. Leave these out, or build the layer with sparse=False"),
    Rule("sparse gradients", lambda c, s, r: c.sparse_table and _sparse(s) in ("rows", "both")
         and (getattr(s, "delay_compensation", "none") != "none" or getattr(s, "staleness_scaling", "none") == "gap"),
         "the gradient of {c.sparse_table} is sparse, and {label} corrects late gradients by the change of all numbers "
         "(delay_compensation, or staleness_scaling of gaps). Set both to none, or build the layer with sparse=False"),
    Rule("joining", lambda c, s, r: c.joins and c.is_a(_ADA_SCALE),
         "AdaScale measures all workers in each step, and one that joins has no gradient yet; let none join, "
         "or take LAMB for that"),
    Rule("joining", lambda c, s, r: c.joins and c.sparse_table and _sparse(s) == "rows" and s.meets == "rounds",
         "the gradient of {c.sparse_table} is sparse, and under {label} a worker that joins would not receive the rows "
         "of the others; let none join, or build the layer with sparse=False"),
    Rule("sparse gradients", lambda c, s, r: c.sparse_table and _sparse(s) == "both"
         and getattr(s, "momentum", "") == "average",
         "the gradient of {c.sparse_table} is sparse, and means under {label} are of its rows, without the optimizer's "
         'state. Leave momentum at "keep" or "reset", or build the layer with sparse=False'),
    Rule("sparse gradients", lambda c, s, r: c.has_sparse_momentum
         and (_sparse(s) in ("rows", "both") or c.axes or getattr(s, "momentum", None) == "average"),
         "the gradient of {c.sparse_table} is sparse, and the momentum of {kind} is sparse as well. It grows to all "
         "rows that any step has touched, and can be neither copied nor saved: take momentum=0, SparseAdam or Adagrad"),
    Rule("sparse gradients", lambda c, s, r: c.sparse_table and c.axes and (c.offloads or c.shard_by == "tensors"),
         "the gradient of {c.sparse_table} is sparse, and its rows are stepped where they lie, not on the host or as "
         'full tensors. Leave out offload= and shard_by="tensors", or build the layer with sparse=False'),
    Rule("sparse gradients", lambda c, s, r: c.sparse_table and c.is_a(_ADA_SCALE),
         "AdaScale measures dense gradients, and that of {c.sparse_table} is sparse; build it with sparse=False"),
    Rule("weight", lambda c, s, r: c.weight not in ("equal", COUNTED) and s.meets in _COUNTS_INSTEAD,
         'weight="{c.weight}" weighs the means of all workers, and {label} forms no means: {instead}'),
    Rule("weight", lambda c, s, r: c.weight != "equal" and r.is_adaptive,
         '{c.weighs} weighs means, and {reduce} forms none: every gradient counts as it is; leave weight="equal"'),
    Rule("weight", lambda c, s, r: c.weight != "equal" and r.codes_sums,
         '{c.weighs} cannot be combined with {reduce} beside {compress} with a setting in numbers of the '
         "gradient: sums of unequal weights have no unit that a worker knows. Leave reduce out, or leave "
         'weight="equal"'),
    Rule("weight", lambda c, s, r: c.axes and c.weight not in ("equal", COUNTED),
         'weight="{c.weight}" cannot be combined with a model in shards: its gradients are plain means over the '
         'workers of a replica; leave weight="equal", and call optimizer.weight() before each backward pass'),
    Rule("weight", lambda c, s, r: c.axes and c.axes.stages > 1 and c.weight == COUNTED,
         "optimizer.weight() cannot be combined with stages, whose loss is a mean of micro-batches; leave it out"),
    Rule("weight", lambda c, s, r: c.redundancy.is_there and c.weight == COUNTED,
         "optimizer.weight() cannot be combined with {label}, whose code needs gradients of one weight; leave it out"),
    Rule("buffers", lambda c, s, r: s.client_terms and s.client_terms.is_hidden and s.buffers != "none" and c.buffer,
         "noise and secure of {label} protect the parameters, and not the buffers of the model (as {c.buffer}), "
         'which buffers="{c.strategy.buffers}" exchanges as they are. Set buffers="none", and each worker keeps its '
         "own, or build the model without buffers (GroupNorm in place of BatchNorm)"),
    Rule("pieces", lambda c, s, r: c.redundancy.is_there and c.axes,
         "under {label} workers compute the same batches, each with a whole model; leave out quorate.parallelize"),
    Rule("pieces", lambda c, s, r: c.axes and not s.acts_on_pieces,
         "{label} with these settings cannot act between replicas of shards: its actions depend on numbers, on the "
         "clock, or on messages that differ between the shards. Known are all-reduce, local-sgd, post-local-sgd, "
         "slowmo, diloco and its presets, hierarchical-local-sgd, gossip without patience, and quorum and its presets. "
         "sync_every must be a number of steps"),
    Rule("pieces", lambda c, s, r: c.shared and getattr(s, "fragments", 1) > 1,
         "{copies}, and fragments of each stage are agreed on at other times; take fragments=1"),
    Rule("pieces", lambda c, s, r: c.shared and r.is_adaptive,
         "{copies}, and {reduce} weighs them by what else is in a stage; take another"),
    Rule("pieces", lambda c, s, r: c.coded_apart,
         "{copies}, and each stage would write its own code of it; keep it out with dense={c.coded_apart}"),
    Rule("pieces", lambda c, s, r: c.divides_layers and r.crosses_tensors,
         "{compress} codes numbers of several tensors together, and workers that compute layers together hold other "
         "pieces beside the layers that all of them have: these would differ. Leave out the tensor axis, or choose "
         "another codec"),
    Rule("pieces", lambda c, s, r: c.divides_layers and r.rule and r.rule.is_linear and r.rule.name != "Mean",
         "{reduce} weighs whole vectors, and workers that compute layers together hold other pieces of these beside "
         "the layers that all of them have: these would differ. Leave out the tensor axis, or choose a rule that takes "
         "each number by itself, such as median"),
    Rule("pieces", lambda c, s, r: c.shard_by == "tensors" and s.meets == "rounds",
         "{label} agrees in rounds, and {kind} calculates with full tensors: over a model in shards the two do not go "
         "together yet. Choose all-reduce, or an optimizer that treats each number alike"),
    Rule("pieces", lambda c, s, r: c.shard_by == "tensors" and (c.offloads or (c.axes and c.axes.tensor > 1)),
         "{kind} calculates with full tensors, which does not go together with offload or the tensor axis yet; leave "
         "that out, or take an optimizer that treats each number alike"),
    Rule("pieces", lambda c, s, r: c.shard_by == "tensors" and getattr(s, "momentum", None) == "average",
         'momentum="average" cannot be combined with {kind} and a model in shards: its state lies on one worker of '
         "a replica for each full tensor, and means are of pieces. Leave momentum out"),
    Rule("pieces", lambda c, s, r: c.axes and c.asks_to_outlive and s.meets != "rounds",
         'on_death="continue" cannot be combined with {label} of a model in shards: replicas go on without one that '
         "has lost a worker under quorum and its presets"),
    Rule("redundancy", lambda c, s, r: c.redundancy.is_there and c.has_loaders,
         "quorate.loader was called before quorate.distribute, and has given each worker batches of its own; under "
         "{label} several compute the same: call quorate.distribute before it"),
    Rule("redundancy", lambda c, s, r: c.redundancy.is_there and c.has_own_batches,
         "under {label} several workers compute the same batches, and a script for torch DDP gives each its own. Call "
         "quorate.join, distribute and then quorate.loader in it, or choose another strategy"),
    Rule("redundancy", lambda c, s, r: c.redundancy.is_there and c.others_repeat,
         "under another optimizer's strategy workers compute the same batches, too; {label} is for one optimizer"),
    Rule("batch", lambda c, s, r: s.batch == "kept" and not s._keeps_batch,
         'batch="kept" cannot be combined with {label}: it needs steps that wait for the gradients of all workers; use '
         'all-reduce, or quorum with wait_for="all", without overlap and momentum="worker"'),
    Rule("batch", lambda c, s, r: s.batch == "kept" and c.axes and c.axes.replicas == 1,
         'batch="kept" is for replicas that go on without another one, and there is a single one; give the mesh more '
         "replicas, or leave batch out"),
    Rule("batch", lambda c, s, r: s.batch == "kept" and c.axes and c.axes.stages * c.axes.tensor > 1,
         'batch="kept" divides a step among replicas in shards; leave out stages and the tensor axis'),
    Rule("batch", lambda c, s, r: s.batch == "kept" and (not r.forms_means or r.settings.attack),
         'batch="kept" adds up plain gradients, again after a death; leave out {compress}, {reduce} and attacks'),
    Rule("batch", lambda c, s, r: s.batch == "kept" and r.settings.on_anomaly != "ignore",
         'batch="kept" lets workers have unequally many micro-batches, and on_anomaly="{settings.on_anomaly}" compares '
         "their gradients; leave on_anomaly out"),
    Rule("batch", lambda c, s, r: s.batch == "kept" and c.weight != "equal",
         'batch="kept" counts all micro-batches alike; leave out {c.weighs}'),
    Rule("batch", lambda c, s, r: s.batch == "kept" and (c.needs_closure or c.is_a("torch.optim.lbfgs.LBFGS")),
         'batch="kept" agrees in backward passes, and {kind} asks for the loss in its step; use SGD or AdamW'),
    Rule("batch", lambda c, s, r: s.batch == "kept" and c.is_a(_ADA_SCALE),
         'batch="kept" lets workers have unequally many micro-batches, and AdaScale compares their gradients; use SGD'),
    Rule("batch", lambda c, s, r: s.batch == "kept" and c.sparse_table is not None,
         'batch="kept" adds up dense gradients, and those of {c.sparse_table} are sparse; build the layer with '
         "sparse=False"),
    Rule("batch", lambda c, s, r: s.batch == "kept" and (c.has_loaders or c.has_own_batches),
         'batch="kept" divides the batches of quorate.loader; call quorate.distribute first, and then quorate.loader'),
    Rule("batch", lambda c, s, r: (s.batch == "kept" and c.optimizers_before) or c.others_keep,
         'batch="kept" is for one distributed optimizer; put all parameters into one, in groups'),
    Rule("batch", lambda c, s, r: getattr(s, "shrunk_rate", "kept") == "scaled" and not s._keeps_batch,
         'shrunk_rate="scaled" cannot be combined with {label} and these settings: it is for steps of all workers that '
         'live. Use all-reduce, or quorum with wait_for="all", without overlap and momentum="worker"'),
    Rule("offload", lambda c, s, r: c.offloads and c.is_baseline,
         "offload= cannot be combined with a baseline, which makes its own steps; leave it None"),
    Rule("offload", lambda c, s, r: c.offloads and (c.needs_closure or c.is_a("torch.optim.lbfgs.LBFGS")),
         "{kind} asks for the loss several times a step, and with offload= its step is on the host, where there is no "
         "model. Use an optimizer that asks once, such as AdamW or SGD"),
    Rule("offload", lambda c, s, r: c.offloads and c.is_capturable,
         "{kind} with capturable=True steps on a GPU, and offload= makes its steps on the host; leave it"),
    Rule("offload", lambda c, s, r: c.delays_update and not c.averages_gradients,
         "delayed_update cannot be combined with {c.strategy.__class__.__name__}, which writes parameters between "
         "steps while one is under way on the host; known: all-reduce"),
    Rule("offload", lambda c, s, r: c.delays_update and c.axes and c.axes.shards > 1 and not c.steps_numbers,
         "delayed_update makes steps in a thread beside the training's, and {kind} may send something in its step, as "
         "others hold the rest of its parameters; known: {by_number}"),
    Rule("delayed gradients", lambda c, s, r: c.delays_gradients and s.meets == "rounds",
         'schedule="pipedream-2bw" gives gradients of the batch before, and under {label} gradients are late by '
         "themselves: they would be two steps old. Choose another schedule, or all-reduce, local steps or gossip"),
    Rule("sync_batch_norm", lambda c, s, r: c.syncs_norms and c.joins,
         "sync_batch_norm cannot be used when workers may join"),
    Rule("sync_batch_norm", lambda c, s, r: c.syncs_norms and c.shares_batches,
         "sync_batch_norm cannot be combined with tensor axes and stages; leave it out"),
    Rule("sync_batch_norm", lambda c, s, r: c.syncs_norms and s.meets != "all",
         "sync_batch_norm lets workers wait for each other in each forward pass, and {label} does not; use all-reduce "
         "or local steps, or leave the batch norms as they are"),
    Rule("sync_batch_norm", lambda c, s, r: c.syncs_norms and s.batch == "kept",
         'sync_batch_norm brings all workers together for each batch, and with batch="kept" they have unequally many; '
         "leave it out"),
    Rule("gathered", lambda c, s, r: c.gathers_features and c.others_keep,
         'quorate.gathered brings all workers together for each batch, and with batch="kept" they have unequally many; '
         "leave it out"),
    Rule("gathered", lambda c, s, r: c.gathers_features and c.shares_batches,
         "quorate.gathered cannot be combined with tensor axes and stages, along which workers have the same batch"),
    Rule("joining", lambda c, s, r: c.joins and not (s.lets_join and s.on_death == "continue"),
         "workers join where the others go on without the dead. These are quorum and its presets, adaptive, hogwild, "
         "and all kinds of local steps (without overlap, and with learners of one worker). With "
         'on_death="continue" they are also all-reduce, parameter-server, its presets, easgd and eamsgd; under others '
         "all begin together"),
    Rule("servers", lambda c, s, r: c.has_own_servers and not hasattr(s, "may_be_own"),
         "{label} has no servers; --servers needs parameter-server or one of its presets"),
    Rule("servers", lambda c, s, r: c.has_own_servers and not getattr(s, "may_be_own", True),
         "{label} has its servers on workers, as its setting servers says; give --servers to parameter-server"),
    Rule("servers", lambda c, s, r: c.has_own_servers and c.optimizers_before,
         "separate servers (--servers) serve one distributed optimizer; this script has several"),
    Rule("command line", lambda c, s, r: c.asks_for_pieces and c.is_virtual,
         "--mesh, --zero and --offload need processes (-n); a virtual worker holds the whole model"),
    Rule("command line", lambda c, s, r: c.asks_for_pieces and c.is_baseline,
         "--mesh, --zero and --offload cannot be combined with the baseline {label}, which holds whole models"),
    Rule("command line", lambda c, s, r: c.is_virtual and c.is_baseline,
         "the baseline {label} needs processes (-n); with virtual workers compare with all-reduce"),
)  # fmt: skip
"""All rules; the first that refuses a combination gives the message."""


def features() -> dict[str, dict[str, Any]]:
    """Return the features of the page by name, as fields of a `Combination`, or settings; imports torch."""
    from torch.optim import LBFGS

    from quorate.optim.ada_scale import AdaScale

    pieces = {"axes": Axes(replicas=2, shards=2)}
    return {
        "compress": {"compress": "half"},
        "aggregation rule": {"reduce": "median"},
        "reduce=ring": {"compress": "none", "reduce": "ring"},
        "reduce=adasum": {"compress": "none", "reduce": "adasum"},
        "attack": {"attack": "sign-flip"},
        "on_anomaly": {"on_anomaly": "warn"},
        "reduce_dtype": {"reduce_dtype": "bfloat16"},
        "weight": {"weight": "examples"},
        "AdaScale": {"optimizer": AdaScale},
        "LBFGS": {"optimizer": LBFGS},
        "sync_batch_norm": {"syncs_norms": True},
        "shards/stages/tensor": pieces,
        "shards outliving a death": {"on_death": "continue", "asks_to_outlive": True, **pieces},
        "delayed_update": {"offloads": True, "delays_update": True, **pieces},
        "outliving a death": {"on_death": "continue"},
        "keeping the batch": {"on_death": "continue", "batch": "kept"},
        "joining": {"on_death": "continue", "joins": True},
        "own servers": {"has_own_servers": True},
        "sparse gradients": {"sparse_table": "table.weight"},
    }


def refused_features(kind: type[Strategy], label: str, workers: int = 3) -> dict[str, tuple[Rule, str]]:
    """Return the features that a strategy of default settings does not go with, the first rule, and its message."""
    from quorate.means.reduction import NAMES, reduction_of, with_defaults

    refused: dict[str, tuple[Rule, str]] = {}
    for feature, choices in features().items():
        fields: dict[str, Any] = {name: choices[name] for name in choices if hasattr(Combination, name)}
        fields["strategy"] = kind(**{name: choices[name] for name in choices if name in ("on_death", "batch")})
        settings = {name: choices[name] for name in choices if name in NAMES}
        fields["reduction"] = reduction_of(with_defaults(kind.reduction, settings))
        combination = Combination(label=label, workers=workers, **fields)
        for rule in list(refusals(combination))[:1]:
            refused[feature] = rule, rule.words(combination)
    return refused
