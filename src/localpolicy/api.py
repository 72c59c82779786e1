"""The public functions: one behind each verb of `lpi`, and the nouns they take and give."""

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.experiments.demo import demo
from localpolicy.experiments.loop import loop, loop_config
from localpolicy.experiments.recommend import recommend
from localpolicy.experiments.sweep import sweep
from localpolicy.model.budget import beta_within
from localpolicy.model.policy import Policy
from localpolicy.simulate import load_world, simulate
from localpolicy.train.config import Config, configure
from localpolicy.train.loop import train
from localpolicy.train.run import Run
from localpolicy.verdict.compare import compare
from localpolicy.verdict.evaluate import evaluate
from localpolicy.verdict.gate import gate

__all__ = [
    "Config",
    "Policy",
    "Prepared",
    "Run",
    "beta_within",
    "compare",
    "configure",
    "demo",
    "evaluate",
    "gate",
    "load_world",
    "loop",
    "loop_config",
    "prepare",
    "recommend",
    "simulate",
    "sweep",
    "train",
]
