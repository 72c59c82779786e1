"""localpolicy: turn the log of a deployed recommender into a better policy, and know how far it has moved.

One public function stands behind each verb of the command line, with the same name. They are loaded when first
used, so that importing the package (and `lpi --help`) does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Prepared": "localpolicy.data.store",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'localpolicy' has no attribute '{name}'")
