"""localpolicy: turn the log of a deployed recommender into a better policy, and know how far it has moved.

    import localpolicy as lp

    data = lp.prepare(frame, columns={"sequence_id": "session", ...}, rewards={"buy": 1.0, "view": 0.2})
    mle, lpi = lp.train(data, "mle"), lp.train(data, lp.LPI(beta=0.3))
    lp.compare([mle, lpi])

One function stands behind each verb of the command line, under the same name. Each is imported when it is first used,
so that `lpi --help` need not import torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from localpolicy.version import __version__ as __version__

# Torch's threads wait for each other asleep, not in a loop: next to other programs a waiting thread would use up the
# time of the one it waits for, and a step of a tenth of a second would take seconds. Read when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where each public name lives.
_HOMES = {
    "localpolicy.data.prepare": ("prepare",),
    "localpolicy.data.store": ("Prepared",),
    "localpolicy.judge.compare": ("compare",),
    "localpolicy.judge.comparison": ("Comparison",),
    "localpolicy.measure.evaluation": ("Evaluation",),
    "localpolicy.judge.gate": ("gate",),
    "localpolicy.judge.rules": ("GateRules",),
    "localpolicy.judge.verdict": ("Gate",),
    "localpolicy.measure.evaluate": ("evaluate",),
    "localpolicy.measure.off_policy": ("off_policy",),
    "localpolicy.measure.value": ("OffPolicy",),
    "localpolicy.worlds.scenarios": ("loop_config",),
    "localpolicy.report.go": ("go",),
    "localpolicy.worlds.loop": ("loop",),
    "localpolicy.study.sweep": ("Sweep", "sweep"),
    "localpolicy.model.divergence_budget": ("beta_within",),
    "localpolicy.model.lists": ("Lists",),
    "localpolicy.model.policy": ("Policy",),
    "localpolicy.objectives": (
        "IPS", "IPSPG", "LPI", "LPIBandit", "LPIObserved", "LPIWeighted", "LPIWeightedBandit", "MLE", "Objective",
        "PG", "RewardWeighted", "SAC", "SQN",
    ),
    "localpolicy.objectives.objective": ("unweighted", "weighted"),
    "localpolicy.plackett_luce": ("rerank",),
    "localpolicy.ranker": ("explore",),
    "localpolicy.ranker.improve": ("Improvement", "improve"),
    "localpolicy.ranker.layer": ("Layer",),
    "localpolicy.ranker.rules": ("Rules",),
    "localpolicy.worlds.demo": ("demo",),
    "localpolicy.serving.doctor": ("doctor",),
    "localpolicy.reproduction.paper": ("paper",),
    "localpolicy.runs.config": ("Config", "configure"),
    "localpolicy.runs.extend": ("extend",),
    "localpolicy.runs.run": ("Run", "similar"),
    "localpolicy.serving": ("rollout",),
    "localpolicy.serving.audit": ("Audit", "audit"),
    "localpolicy.serving.erase": ("erase",),
    "localpolicy.serving.export": ("export",),
    "localpolicy.serving.recommend": ("recommend",),
    "localpolicy.serving.recommender": ("Recommender",),
    "localpolicy.serving.registry": ("register",),
    "localpolicy.serving.rotate": ("rotate",),
    "localpolicy.serving.service": ("serve",),
    "localpolicy.serving.verify": ("verify",),
    "localpolicy.simulation": ("load_world", "simulate"),
    "localpolicy.training.distill": ("distill",),
    "localpolicy.training.train": ("train",),
    "localpolicy.types": ("Reads", "Readout", "Terms"),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from localpolicy.data.prepare import prepare as prepare
    from localpolicy.data.store import Prepared as Prepared
    from localpolicy.judge.compare import compare as compare
    from localpolicy.judge.comparison import Comparison as Comparison
    from localpolicy.judge.gate import gate as gate
    from localpolicy.judge.rules import GateRules as GateRules
    from localpolicy.judge.verdict import Gate as Gate
    from localpolicy.measure.evaluate import evaluate as evaluate
    from localpolicy.measure.evaluation import Evaluation as Evaluation
    from localpolicy.measure.off_policy import off_policy as off_policy
    from localpolicy.measure.value import OffPolicy as OffPolicy
    from localpolicy.model.divergence_budget import beta_within as beta_within
    from localpolicy.model.lists import Lists as Lists
    from localpolicy.model.policy import Policy as Policy
    from localpolicy.objectives import IPS as IPS
    from localpolicy.objectives import IPSPG as IPSPG
    from localpolicy.objectives import LPI as LPI
    from localpolicy.objectives import MLE as MLE
    from localpolicy.objectives import PG as PG
    from localpolicy.objectives import SAC as SAC
    from localpolicy.objectives import SQN as SQN
    from localpolicy.objectives import LPIBandit as LPIBandit
    from localpolicy.objectives import LPIObserved as LPIObserved
    from localpolicy.objectives import LPIWeighted as LPIWeighted
    from localpolicy.objectives import LPIWeightedBandit as LPIWeightedBandit
    from localpolicy.objectives import Objective as Objective
    from localpolicy.objectives import RewardWeighted as RewardWeighted
    from localpolicy.objectives.objective import unweighted as unweighted
    from localpolicy.objectives.objective import weighted as weighted
    from localpolicy.plackett_luce import rerank as rerank
    from localpolicy.ranker import explore as explore
    from localpolicy.ranker.improve import Improvement as Improvement
    from localpolicy.ranker.improve import improve as improve
    from localpolicy.ranker.layer import Layer as Layer
    from localpolicy.ranker.rules import Rules as Rules
    from localpolicy.report.go import go as go
    from localpolicy.reproduction.paper import paper as paper
    from localpolicy.runs.config import Config as Config
    from localpolicy.runs.config import configure as configure
    from localpolicy.runs.extend import extend as extend
    from localpolicy.runs.run import Run as Run
    from localpolicy.runs.run import similar as similar
    from localpolicy.serving import rollout as rollout
    from localpolicy.serving.audit import Audit as Audit
    from localpolicy.serving.audit import audit as audit
    from localpolicy.serving.doctor import doctor as doctor
    from localpolicy.serving.erase import erase as erase
    from localpolicy.serving.export import export as export
    from localpolicy.serving.recommend import recommend as recommend
    from localpolicy.serving.recommender import Recommender as Recommender
    from localpolicy.serving.registry import register as register
    from localpolicy.serving.rotate import rotate as rotate
    from localpolicy.serving.service import serve as serve
    from localpolicy.serving.verify import verify as verify
    from localpolicy.simulation import load_world as load_world
    from localpolicy.simulation import simulate as simulate
    from localpolicy.study.sweep import Sweep as Sweep
    from localpolicy.study.sweep import sweep as sweep
    from localpolicy.training.distill import distill as distill
    from localpolicy.training.train import train as train
    from localpolicy.types import Readout as Readout
    from localpolicy.types import Reads as Reads
    from localpolicy.types import Terms as Terms
    from localpolicy.worlds.demo import demo as demo
    from localpolicy.worlds.loop import loop as loop  # type: ignore[no-redef, unused-ignore]  # its module has its name
    from localpolicy.worlds.scenarios import loop_config as loop_config


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'localpolicy' has no attribute '{name}'")
    home = importlib.import_module(_HOME[name])
    # A verb with verbs of its own is a module: lp.rollout.plan, lp.rollout.judge.
    value = getattr(home, name, None) or importlib.import_module(f"{_HOME[name]}.{name}")
    globals()[name] = value  # asked once
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
