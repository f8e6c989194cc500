# What type checkers and editors read in place of __init__.py: the classes, which are imported when they are asked for.
# A test keeps it equal to the registry.
from collections.abc import Callable
from typing import TypeVar

from quorate.core.registry import Registry
from quorate.core.strategy import Strategy
from quorate.strategies.ad_psgd import ADPSGD as ADPSGD
from quorate.strategies.adaptive import Adaptive as Adaptive
from quorate.strategies.adaptive_local_sgd import AdaptiveLocalSGD as AdaptiveLocalSGD
from quorate.strategies.all_reduce import AllReduce as AllReduce
from quorate.strategies.async_local_sgd import AsyncLocalSGD as AsyncLocalSGD
from quorate.strategies.auto import Auto as Auto
from quorate.strategies.choco_sgd import ChocoSGD as ChocoSGD
from quorate.strategies.d2 import D2 as D2
from quorate.strategies.d_psgd import DPSGD as DPSGD
from quorate.strategies.dcd_psgd import DCDPSGD as DCDPSGD
from quorate.strategies.decoupled_diloco import DecoupledDiLoCo as DecoupledDiLoCo
from quorate.strategies.detox import DETOX as DETOX
from quorate.strategies.diloco import DiLoCo as DiLoCo
from quorate.strategies.draco import DRACO as DRACO
from quorate.strategies.eager_averaging import EagerAveraging as EagerAveraging
from quorate.strategies.easgd import EASGD as EASGD
from quorate.strategies.ecd_psgd import ECDPSGD as ECDPSGD
from quorate.strategies.fed_avg import FedAvg as FedAvg
from quorate.strategies.fed_opt import FedOpt as FedOpt
from quorate.strategies.fed_prox import FedProx as FedProx
from quorate.strategies.gradient_coding import GradientCoding as GradientCoding
from quorate.strategies.group_averaging import GroupAveraging as GroupAveraging
from quorate.strategies.hierarchical_local_sgd import HierarchicalLocalSGD as HierarchicalLocalSGD
from quorate.strategies.hogwild import Hogwild as Hogwild
from quorate.strategies.local_sgd import LocalSGD as LocalSGD
from quorate.strategies.noloco import NoLoCo as NoLoCo
from quorate.strategies.one_bit_adam import OneBitAdam as OneBitAdam
from quorate.strategies.one_bit_lamb import OneBitLAMB as OneBitLAMB
from quorate.strategies.osgp import OSGP as OSGP
from quorate.strategies.parameter_server import ParameterServer as ParameterServer
from quorate.strategies.post_local_sgd import PostLocalSGD as PostLocalSGD
from quorate.strategies.presets.backup_workers import BackupWorkers as BackupWorkers
from quorate.strategies.presets.bounded_staleness import BoundedStaleness as BoundedStaleness
from quorate.strategies.presets.dana import DANA as DANA
from quorate.strategies.presets.dc_asgd import DCASGD as DCASGD
from quorate.strategies.presets.downpour import Downpour as Downpour
from quorate.strategies.presets.eager_majority import EagerMajority as EagerMajority
from quorate.strategies.presets.eager_solo import EagerSolo as EagerSolo
from quorate.strategies.presets.eamsgd import EAMSGD as EAMSGD
from quorate.strategies.presets.fed_buff import FedBuff as FedBuff
from quorate.strategies.presets.muloco import MuLoCo as MuLoCo
from quorate.strategies.presets.sparse_loco import SparseLoCo as SparseLoCo
from quorate.strategies.presets.ssp import SSP as SSP
from quorate.strategies.presets.streaming_diloco import StreamingDiLoCo as StreamingDiLoCo
from quorate.strategies.presets.sync_backup import SyncBackup as SyncBackup
from quorate.strategies.quorum import Quorum as Quorum
from quorate.strategies.relay import Relay as Relay
from quorate.strategies.robust import Robust as Robust
from quorate.strategies.scaffold import Scaffold as Scaffold
from quorate.strategies.sgp import SGP as SGP
from quorate.strategies.slowmo import SlowMo as SlowMo
from quorate.strategies.symmetric_easgd import SymmetricEASGD as SymmetricEASGD
from quorate.strategies.zero_one_adam import ZeroOneAdam as ZeroOneAdam

U = TypeVar("U")

strategies: Registry[type[Strategy]]

def register(name: str) -> Callable[[U], U]: ...
def get(name: str) -> Callable[..., Strategy]: ...
