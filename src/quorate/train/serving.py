"""`distribute` on a rank that is a server only: it serves parameters until the training has ended."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from torch.nn import Module
from torch.optim import Optimizer

from quorate.core.errors import Stopped
from quorate.core.servers import OwnServers
from quorate.core.strategy import Strategy
from quorate.data.context import DataContext
from quorate.means.headers import header_length
from quorate.observe.step_times import Timing
from quorate.observe.stopping import Stop
from quorate.replica.replica import Replica
from quorate.servers.server_task import OwnServer
from quorate.strategies.parts.servers import PlacedOnServers, ServerSettings
from quorate.train.reduced import served_coding_of
from quorate.train.same_call import call_of, compare_with_those_joined
from quorate.train.watched import Watched
from quorate.wire.current import Place


def serve(
    optimizer: Optimizer, plain: Any, model: Module, strategy: Strategy, place: Place, name: str, watched: Watched
) -> NoReturn:
    """Serve until the end, and raise `Stopped`. Arguments as of `train.loop.Loop`."""
    assert isinstance(strategy, ServerSettings) and isinstance(strategy, PlacedOnServers)
    own, wire, stop = place.context(OwnServers), place.wire.channel(f"optimizer/{name}"), place.context(Stop)
    own.has_served = True
    header = partial(header_length, max_size=wire.max_size)
    is_coded = None if watched.reduction.codec is None else watched.reduction.is_coded
    replica = Replica(optimizer, plain, model, header, is_coded, exchanges_rows=True)
    check = partial(compare_with_those_joined, call_of(replica, strategy, watched.choices), who="server")
    goes_on = strategy.on_death == "continue"
    coding, _ = served_coding_of(watched.reduction, place.context(DataContext).seed)
    recorder = place.context(Timing).recorder
    server = OwnServer(
        wire,
        replica,
        strategy.terms(strategy.placed(wire.size, own.ranks), strategy.replication),
        check,
        name=name,
        coding=coding,
        tolerates_death=goes_on,
        record=(lambda row: None) if recorder is None else recorder.hold,
    )
    stop.trainings += 1  # a server that is asked to leave does so after the workers
    server.serve()
    stop.trainings -= 1
    if stop.asked is not None:
        stop.left_with = stop.asked
    raise Stopped(0 if stop.asked is None else stop.asked)
