"""Display of a training run: a note next to the progress bar, or one plain line per epoch without a terminal.

Sums of the losses and weights live on the device; reading them waits for it. So nothing is read at each step: the bar
requests a note twice a second at most, and the plain line comes when validation has waited anyway.
"""

from __future__ import annotations

import time

from localpolicy.training.checkpoint import Progress
from localpolicy.training.epoch_log import EpochLog, effective_share

SKIPPED, TIMED = 3, 3.0  # first steps that are not timed, and seconds that are, before a forecast
LONG = 600.0  # seconds of a run from which on a forecast is logged first


class Display:
    """Texts on the progress of a run."""

    def __init__(
        self, begun: Progress, *, sequences: int, batch_size: int, epochs: int, patience: int | None = None
    ) -> None:
        self.sequences, self.batch_size, self.epochs, self.patience = sequences, batch_size, epochs, patience
        self.first, self.first_step = self._seen(begun), begun.step
        self.began = self.timed = time.perf_counter()
        self.told = False

    def forecast(self, done: Progress) -> str | None:
        """Forecast of the duration from the first steps, once, if it is long; else None."""
        made, now = done.step - self.first_step, time.perf_counter()
        if made <= SKIPPED:
            self.timed = now
        if self.told or made <= SKIPPED or now - self.timed < TIMED:
            return None
        self.told = True
        epoch = (now - self.timed) / (made - SKIPPED) * -(-self.sequences // self.batch_size)
        least = min(self.epochs, self.epochs if self.patience is None else self.patience + 1) - done.epoch
        if least * epoch < LONG:
            return None
        ends = "" if self.patience is None else f", until {self.patience} bring nothing better"
        least = max(least, 1)
        if least == self.epochs:
            lasts = f"{least} epoch{'' if least == 1 else 's'}, so {_clock(least * epoch)}"
        else:
            lasts = (
                f"{least} to {self.epochs} epochs{ends}, so {_clock(least * epoch)} to {_clock(self.epochs * epoch)}"
            )
        return (
            f"an epoch takes about {_clock(epoch)} here: {lasts} (h:mm:ss). --minutes M stops it after "
            "M minutes with the best weights so far"
        )

    def _seen(self, done: Progress) -> int:
        """Number of sequences seen so far, in all epochs."""
        return done.epoch * self.sequences + min(done.batch * self.batch_size, self.sequences)

    def _rate(self, done: Progress) -> float:
        """Sequences per second since this process began, validations included."""
        return (self._seen(done) - self.first) / max(time.perf_counter() - self.began, 1e-9)

    def note(self, done: Progress, log: EpochLog) -> str:
        """Text to the right of the progress bar: epoch, losses, sequences per second."""
        return f"epoch {done.epoch + 1}  {_numbers(log)}, {self._rate(done):,.0f} sequences/s"

    def line(self, done: Progress, log: EpochLog) -> str:
        """Log line for a finished epoch: losses, best score, speed, time left."""
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
