"""The public functions: one behind each verb of `lpi`, and the nouns they take and give."""

from localpolicy.data.prepare import prepare
from localpolicy.data.store import Prepared
from localpolicy.evaluate.compare import compare
from localpolicy.evaluate.gate import gate
from localpolicy.evaluate.run import evaluate
from localpolicy.experiments.loop import loop, loop_config
from localpolicy.experiments.sweep import sweep
from localpolicy.model.budget import beta_within
from localpolicy.model.policy import Policy
from localpolicy.report.demo.page import demo
from localpolicy.runs.config import Config, configure
from localpolicy.runs.run import Run
from localpolicy.serve.export import export
from localpolicy.serve.recommend import recommend
from localpolicy.serve.recommender import Recommender
from localpolicy.simulate import load_world, simulate
from localpolicy.train.loop import train

__all__ = [
    "Config",
    "Policy",
    "Prepared",
    "Recommender",
    "Run",
    "beta_within",
    "compare",
    "configure",
    "demo",
    "evaluate",
    "export",
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
