"""Backbones: networks from histories to hidden states.

A backbone is any `nn.Module` called as `backbone(embedded, layout) -> hidden`, where

    embedded [M, D]  the embedded tokens of a batch, flat, without padding
    layout           the place of each token; `layout.pad` and `layout.flatten` convert to and from [B, T, D]
    hidden   [M, D]  the context of each token: it must depend on this and earlier tokens of its sequence alone

Adding one = one file + one line below. One from outside is passed as a module, or named as `package.module:Name` (a
class with the arguments of ours: width, length, blocks, heads, dropout), or registered by an installed package under
the entry point group `localpolicy.backbones`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn

from localpolicy import plugins
from localpolicy.errors import ConfigError, RunError, nearest, shown
from localpolicy.model.backbones.convolution import Convolution
from localpolicy.model.backbones.gated import Gated
from localpolicy.model.backbones.gru import GRU
from localpolicy.model.backbones.layout import Layout
from localpolicy.model.backbones.sasrec import SASRec


class Backbone(Protocol):
    """Module from histories to hidden states."""

    def __call__(self, embedded: Tensor, layout: Layout) -> Tensor:
        """Hidden states [M, D] of embedded tokens [M, D]."""
        ...


BACKBONES: dict[str, type[nn.Module]] = {
    "sasrec": SASRec,
    "gated": Gated,
    "gru": GRU,
    "convolution": Convolution,
}
# Untrained copies of modules that were passed in this process, by name: runs trained with them can be opened here.
_PASSED: dict[str, nn.Module] = {}


def backbone_called(name: str) -> Callable[..., nn.Module]:
    """Constructor of the backbone of this name: ours, a registered one, or an imported class."""
    backbone = BACKBONES.get(name) or plugins.find("backbones", name)
    if backbone is None:
        raise ConfigError(
            f"model.backbone: no backbone '{name}'{nearest(name, BACKBONES)} One of your own is named as "
            "package.module:Name, and imported with 'lpi --import package.module'."
        )
    ours = name in BACKBONES or name in plugins.registered("backbones")
    if not ours and not (isinstance(backbone, type) and issubclass(backbone, nn.Module)):
        # The name may come from a file: it must name a network before it is called.
        raise ConfigError(f"model.backbone: '{name}' is {shown(backbone)}, not a subclass of torch.nn.Module.")
    made: Callable[..., nn.Module] = backbone
    return made


def remember(backbone: nn.Module) -> None:
    """Keep an untrained copy of a module that the user passed, which `passed_before` returns by its name."""
    _PASSED[plugins.name_of(backbone)] = copy.deepcopy(backbone)


def passed_before(name: str) -> nn.Module:
    """Copy of the module of this name that was passed in this process."""
    if name not in _PASSED:
        raise RunError(
            f"this run has a backbone of your own ({name}): pass the same module as backbone=, or train with it by "
            "name (--set model.backbone=package.module:Name)."
        )
    return copy.deepcopy(_PASSED[name])


__all__ = ["BACKBONES", "Backbone", "Layout", "backbone_called", "passed_before", "remember"]
