"""When and with whom workers agree, and on what: one file per strategy, each known by one name.

The classes are also found here (`quorate.strategies.EagerSolo`), and are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.core.strategy import Strategy

strategies: Registry[type[Strategy]] = Registry(
    "strategy",
    {
        "ad-psgd": "quorate.strategies.ad_psgd:ADPSGD",
        "adaptive": "quorate.strategies.adaptive:Adaptive",
        "adaptive-local-sgd": "quorate.strategies.adaptive_local_sgd:AdaptiveLocalSGD",
        "all-reduce": "quorate.strategies.all_reduce:AllReduce",
        "async-local-sgd": "quorate.strategies.async_local_sgd:AsyncLocalSGD",
        "auto": "quorate.strategies.auto:Auto",
        "backup-workers": "quorate.strategies.presets.backup_workers:BackupWorkers",
        "bounded-staleness": "quorate.strategies.presets.bounded_staleness:BoundedStaleness",
        "choco-sgd": "quorate.strategies.choco_sgd:ChocoSGD",
        "d-psgd": "quorate.strategies.d_psgd:DPSGD",
        "d2": "quorate.strategies.d2:D2",
        "dana": "quorate.strategies.presets.dana:DANA",
        "dc-asgd": "quorate.strategies.presets.dc_asgd:DCASGD",
        "dcd-psgd": "quorate.strategies.dcd_psgd:DCDPSGD",
        "decoupled-diloco": "quorate.strategies.decoupled_diloco:DecoupledDiLoCo",
        "detox": "quorate.strategies.detox:DETOX",
        "diloco": "quorate.strategies.diloco:DiLoCo",
        "downpour": "quorate.strategies.presets.downpour:Downpour",
        "draco": "quorate.strategies.draco:DRACO",
        "eager-averaging": "quorate.strategies.eager_averaging:EagerAveraging",
        "eager-majority": "quorate.strategies.presets.eager_majority:EagerMajority",
        "eager-solo": "quorate.strategies.presets.eager_solo:EagerSolo",
        "eamsgd": "quorate.strategies.presets.eamsgd:EAMSGD",
        "easgd": "quorate.strategies.easgd:EASGD",
        "ecd-psgd": "quorate.strategies.ecd_psgd:ECDPSGD",
        "fed-avg": "quorate.strategies.fed_avg:FedAvg",
        "fed-buff": "quorate.strategies.presets.fed_buff:FedBuff",
        "fed-opt": "quorate.strategies.fed_opt:FedOpt",
        "fed-prox": "quorate.strategies.fed_prox:FedProx",
        "gradient-coding": "quorate.strategies.gradient_coding:GradientCoding",
        "group-averaging": "quorate.strategies.group_averaging:GroupAveraging",
        "hierarchical-local-sgd": "quorate.strategies.hierarchical_local_sgd:HierarchicalLocalSGD",
        "hogwild": "quorate.strategies.hogwild:Hogwild",
        "local-sgd": "quorate.strategies.local_sgd:LocalSGD",
        "muloco": "quorate.strategies.presets.muloco:MuLoCo",
        "noloco": "quorate.strategies.noloco:NoLoCo",
        "one-bit-adam": "quorate.strategies.one_bit_adam:OneBitAdam",
        "one-bit-lamb": "quorate.strategies.one_bit_lamb:OneBitLAMB",
        "osgp": "quorate.strategies.osgp:OSGP",
        "parameter-server": "quorate.strategies.parameter_server:ParameterServer",
        "post-local-sgd": "quorate.strategies.post_local_sgd:PostLocalSGD",
        "quorum": "quorate.strategies.quorum:Quorum",
        "relay": "quorate.strategies.relay:Relay",
        "robust": "quorate.strategies.robust:Robust",
        "scaffold": "quorate.strategies.scaffold:Scaffold",
        "sgp": "quorate.strategies.sgp:SGP",
        "slowmo": "quorate.strategies.slowmo:SlowMo",
        "sparse-loco": "quorate.strategies.presets.sparse_loco:SparseLoCo",
        "ssp": "quorate.strategies.presets.ssp:SSP",
        "streaming-diloco": "quorate.strategies.presets.streaming_diloco:StreamingDiLoCo",
        "sync-backup": "quorate.strategies.presets.sync_backup:SyncBackup",
        "symmetric-easgd": "quorate.strategies.symmetric_easgd:SymmetricEASGD",
        "zero-one-adam": "quorate.strategies.zero_one_adam:ZeroOneAdam",
    },
    takes_files=True,
)
register, get = strategies.register, strategies.get
_CLASSES = {place.rpartition(":")[2]: name for name, place in strategies.places.items()}
"""By class of those that come with Quorate, the strategy's name."""


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; its classes are {', '.join(_CLASSES)}")
    return strategies.get(_CLASSES[name])


def __dir__() -> list[str]:
    return sorted([*globals(), *_CLASSES])
