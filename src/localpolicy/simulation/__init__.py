"""Simulated worlds with a known truth, and raw files in the formats of public data sets."""

from localpolicy.simulation.bandit import BanditConfig, BanditWorld
from localpolicy.simulation.logs import write_log
from localpolicy.simulation.prepared import write_prepared
from localpolicy.simulation.run import Simulated, simulate
from localpolicy.simulation.store_config import StoreConfig
from localpolicy.simulation.store_world import RolloutValue, StoreWorld
from localpolicy.simulation.truth import load_world

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
