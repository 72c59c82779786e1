"""The public functions: one behind each verb of `lpi`, and the nouns they take and give."""

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.experiments.demo import demo
from localpolicy.experiments.recommend import recommend
from localpolicy.model.budget import beta_within
from localpolicy.model.policy import Policy
from localpolicy.simulate import load_world, simulate
from localpolicy.train.config import Config, configure
from localpolicy.train.loop import train
from localpolicy.train.run import Run

__all__ = [
    "Config",
    "Policy",
    "Prepared",
    "Run",
    "beta_within",
    "configure",
    "demo",
    "load_world",
    "prepare",
    "recommend",
    "simulate",
    "train",
]
