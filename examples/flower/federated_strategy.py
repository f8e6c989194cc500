"""A federated strategy of Quorate as a strategy of Flower (flwr), which connects real sites.

Copy this file beside your ServerApp. Flower draws the clients (`sampled`), your ClientApp trains them, and the models
that they send back go through the same code that makes a round under `quorate.distribute`. Flower pins other versions
of packages, so it needs an environment of its own: `pip install 'flwr[simulation]'`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.core.errors import ConfigurationError, MissingExtra
from quorate.core.means import Mean
from quorate.core.settings import settings_for
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat, pack
from quorate.strategies import strategies
from quorate.strategies.parts.client_sums import together
from quorate.strategies.parts.client_work import FederatedSettings, clipped
from quorate.strategies.scaffold import Controlled

CONTROL, CHANGE = "control", "control-change"
"""Under scaffold: the arrays that go to clients beside the model (c), and those that come back (c_i+ - c_i)."""


def strategy(name: str, *, weighted_by_key: str = "num-examples", **settings: Any) -> Any:
    """A `flwr.serverapp.strategy.Strategy` that goes from one global model to the next as the strategy `name` does.

    `settings` are its own (`sampled` is Flower's fraction of nodes), and Flower's arguments of FedAvg
    (`min_train_nodes`, ...). Clients get `local-epochs`, `local-steps` and for fed-prox `proximal-mu` in their config,
    and reply with the arrays of the model and a metric `num-examples`, as Flower's examples do; under scaffold they get
    c as the arrays "control", and reply with the change of their own control variate as "control-change".

    Raises `MissingExtra` without flwr, and `ConfigurationError` for a strategy that is not federated, and for settings
    that are the loader's (`stragglers`, `dropouts`) or that Flower has itself (`noise`, `secure`).
    """
    kind = strategies.get(name)
    if not issubclass(kind, FederatedSettings):
        raise ConfigurationError(f"{name} is not a federated strategy; use fed-avg, fed-opt, fed-prox or scaffold")
    own = {field.name for field in dataclasses.fields(kind)}
    flowers = {key: value for key, value in settings.items() if key not in own}
    chosen = kind(**settings_for(kind, {key: value for key, value in settings.items() if key in own}, name))
    if chosen.noise or chosen.secure or chosen.stragglers or chosen.dropouts:
        raise ConfigurationError(
            "noise and secure are Flower's to see to (its differential privacy and SecAgg+), and stragglers and "
            "dropouts are for experiments without it; leave them out"
        )

    try:
        from flwr.app import ArrayRecord, ConfigRecord, Message
        from flwr.serverapp import Grid
        from flwr.serverapp.strategy import FedAvg
    except ImportError:
        raise MissingExtra("this strategy needs Flower; install it with: pip install 'flwr[simulation]'") from None

    class OnFlower(FedAvg):  # type: ignore[misc]  # flwr need not be installed
        """Flower's FedAvg, but for the step from one global model to the next."""

        def __init__(self) -> None:
            super().__init__(fraction_train=chosen.sampled, weighted_by_key=weighted_by_key, **flowers)
            self._site = Site(chosen)

        def summary(self) -> None:
            """Nothing to log: the strategy's settings are the caller's."""

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            """Draw nodes, and send them the model and what they are to do."""
            self._site.begins(arrays.to_torch_state_dict(), len(list(grid.get_node_ids())))
            config["local-epochs"], config["local-steps"] = chosen.local_epochs, chosen.local_steps
            if hasattr(chosen, "mu"):
                config["proximal-mu"] = float(chosen.mu)
            found = list(super().configure_train(server_round, arrays, config, grid))
            if (control := self._site.control()) is not None:
                for message in found:
                    message.content[CONTROL] = ArrayRecord(control)
            return found

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            """The next global model, and the mean of what clients measured."""
            good, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
            if not good:
                return None, None
            metrics = self.train_metrics_aggr_fn([message.content for message in good], self.weighted_by_key)
            for message in good:
                (measured,) = message.content.metric_records.values()
                records = message.content.array_records
                change = records[CHANGE].to_torch_state_dict() if CHANGE in records else None
                arrays = records[self.arrayrecord_key].to_torch_state_dict()
                self._site.comes(arrays, float(measured[self.weighted_by_key]), change)
            return ArrayRecord(self._site.ends()), metrics

    return OnFlower()


class Site:
    """The global model on Flower's side, as much of a worker as strategies of clients need."""

    rank, size = 0, 1

    def __init__(self, chosen: FederatedSettings) -> None:
        self._chosen, self.state, self._named, self._nodes = chosen, cast(Any, None), dict[str, Tensor](), 1
        self.parameters: Flat = cast(Flat, None)

    def begins(self, model: Mapping[str, Tensor], nodes: int) -> None:
        """A round begins at `model`."""
        self._named, self._nodes = dict(model), nodes
        self.parameters = self._flat(model)
        if self.state is None:
            self.state = self._chosen.start(cast(Worker, self))
        if isinstance(self.state, Controlled):
            self.state.clients = float(nodes)
        self.state.go_on_at(self, self.parameters)

    def control(self) -> dict[str, Tensor] | None:
        """c, by the names of the model; None where the strategy has none."""
        return self._by_name(self.state.common) if isinstance(self.state, Controlled) else None

    def comes(self, model: Mapping[str, Tensor], examples: float, change: Mapping[str, Tensor] | None) -> None:
        """What one client has made of the model. Raises `ConfigurationError` where it lacks something."""
        way = clipped(self._flat(model) - self.state.point, self._chosen.clip)
        self.state.add(way, 1.0 if self._chosen.weigh == "equal" else examples)
        for name, x in model.items():
            if not x.is_floating_point():
                self._named[name] = x
        if not isinstance(self.state, Controlled):
            return
        if change is None:
            raise ConfigurationError(f'under scaffold clients reply with the arrays "{CHANGE}": c_i+ - c_i')
        own = self._flat({name: change.get(name, torch.zeros_like(x)) for name, x in self._named.items()})
        self.state.changed = own if self.state.changed is None else self.state.changed.add_(own)

    def ends(self) -> dict[str, Tensor]:
        """The round ends: the next global model."""
        mean, weight = self.state.mean_delta()
        if isinstance(self.state, Controlled):
            told = self.state.numbers_for(cast(Worker, self), weight)
            mean = together([mean, self.state.change / weight], told)
        self._chosen.apply(cast(Worker, self), Mean(mean=mean))
        return {**self._named, **self._by_name(self.parameters)}

    def _flat(self, model: Mapping[str, Tensor]) -> Flat:
        named = [(name, model[name]) for name, x in self._named.items() if x.is_floating_point()]
        pack([x for _, x in named], into := Flat.zeros(layout_of(named)))
        return into

    def _by_name(self, vector: Flat) -> dict[str, Tensor]:
        segments = zip(vector.layout.segments, vector.segments(), strict=True)
        return {segment.name: x.detach().clone().to(segment.dtype) for segment, x in segments}
