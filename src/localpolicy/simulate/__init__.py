"""Simulated worlds with a known truth, and raw files in the formats of public data sets."""

from localpolicy.simulate.bandit import BanditConfig, BanditWorld
from localpolicy.simulate.logs import write_log
from localpolicy.simulate.prepared import write_prepared
from localpolicy.simulate.run import Simulated, simulate
from localpolicy.simulate.shop import RolloutValue, StoreConfig, StoreWorld
from localpolicy.simulate.truth import load_world

__all__ = [
    "BanditConfig",
    "BanditWorld",
    "RolloutValue",
    "Simulated",
    "StoreConfig",
    "StoreWorld",
    "load_world",
    "simulate",
    "write_log",
    "write_prepared",
]
