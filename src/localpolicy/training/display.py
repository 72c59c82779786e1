"""What a user sees while a run trains: a note beside the bar, or one plain line per epoch where there is no terminal.

Sums of the losses and weights live on the device; reading them waits for it. So nothing is read at each step: the bar
asks for a note twice a second at most, and the plain line comes when validation has waited anyway.
"""

from __future__ import annotations

import time

from localpolicy.training.checkpoint import Progress
from localpolicy.training.epoch_log import EpochLog, effective_share


class Display:
    """Words for how far a run has come."""

    def __init__(self, begun: Progress, *, sequences: int, batch_size: int, epochs: int) -> None:
        self.sequences, self.batch_size, self.epochs = sequences, batch_size, epochs
        self.first = self._seen(begun)
        self.began = time.perf_counter()

    def _seen(self, done: Progress) -> int:
        """Sequences seen in all."""
        return done.epoch * self.sequences + min(done.batch * self.batch_size, self.sequences)

    def _rate(self, done: Progress) -> float:
        """Sequences per second since this process began, validations included."""
        return (self._seen(done) - self.first) / max(time.perf_counter() - self.began, 1e-9)

    def note(self, done: Progress, log: EpochLog) -> str:
        """Right of the bar, which shows the time left itself."""
        return f"epoch {done.epoch + 1}  {_numbers(log)}, {self._rate(done):,.0f} sequences/s"

    def line(self, done: Progress, log: EpochLog) -> str:
        """Of an epoch that has ended."""
        rate = self._rate(done)
        left = (self.epochs * self.sequences - self._seen(done)) / max(rate, 1e-9)
        return (
            f"epoch {done.epoch} of {self.epochs}: {_numbers(log)}, best {done.best:.5f} at step {done.best_step}, "
            f"{rate:,.0f} sequences/s, {_clock(left)} left"
        )


def _numbers(log: EpochLog) -> str:
    """Mean losses and effective sample of the epoch so far."""
    total, squares, _, _, count = log.moments.tolist()
    losses = " + ".join(f"{name} {value:.4f}" for name, value in log.mean_losses().items())
    return f"loss {losses}, effective sample {effective_share(total, squares, max(count, 1.0)):.0%}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
