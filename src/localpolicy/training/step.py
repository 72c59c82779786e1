"""One training step: batch -> loss -> gradient -> optimiser -> log. A captured step records this function.

Its randomness depends on (seed, number) alone, and on the rank: so a run resumes from a checkpoint as if it had never
stopped, and no generator's state is kept.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from localpolicy.model.network import Network
from localpolicy.runs.config import TrainConfig
from localpolicy.runtime.devices import seed_generators
from localpolicy.runtime.graph_branch import GraphBranch
from localpolicy.runtime.ranks import Ranks
from localpolicy.training.epoch_log import EpochLog
from localpolicy.training.finite import refuse_broken_terms
from localpolicy.training.gradients import clip, sum_copies
from localpolicy.types import Batch, Terms


@dataclass(frozen=True)
class Step:
    """Network, losses and optimiser of a training step."""

    network: Network
    losses: nn.Module  # batch -> loss, means, terms
    optimiser: torch.optim.Optimizer
    config: TrainConfig
    ranks: Ranks

    def begin(self, number: int) -> bool:
        """Seed the generators and return the step's coin."""
        config, ranks = self.config, self.ranks
        seed = config.seed * 1_000_003 + number + 1
        seed_generators(seed, config.device)
        coin = torch.rand(()).item() < 0.5  # the same on all ranks
        if ranks.rank:
            seed_generators(seed * 1_000_033 + ranks.rank, config.device)
        return coin

    def __call__(
        self,
        batch: Batch,
        number: int,
        coin: bool,
        *,
        count: float | Tensor,
        log: EpochLog | None,
        tables: AbstractContextManager[None] | None = None,
    ) -> None:
        """Take a step down the mean over `count` positions, those of all ranks, and enter it into the log.

        `tables` is open while gradients are computed, and decides when those of the item tables are added up.
        """
        ranks, network = self.ranks, self.network
        self.optimiser.zero_grad(set_to_none=True)
        terms: Terms
        leaf = ranks.alone or network.shard is not None  # DDP looks for the parameters themselves
        network.build_item_embeddings(leaf=leaf)
        with tables or nullcontext():
            loss, means, terms = self.losses(batch, number, coin, count)
            refuse_broken_terms(means, terms, number)  # a batch that is filled up has no means: its log is checked
            logging = GraphBranch(loss.device)
            # DDP averages gradients over ranks; ours are shares of one mean, so they must be summed.
            (loss * ranks.total if ranks.total > 1 and network.shard is None else loss).backward()
        network.backward_to_features()
        if network.shard is not None:
            sum_copies(network, ranks)
        if self.config.gradient_clip is not None:
            clip(network, self.config.gradient_clip, ranks)
        self.optimiser.step()
        if log is not None:
            with logging.on_side_stream():  # it needs the losses alone
                log.add(terms.detached(), batch.counted)
            logging.join([])
