"""Weights on disk: safetensors, and whole tables however many ranks hold their rows.

So a run can be loaded, or gone on with, by any number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from localpolicy.catalogue.shards import Shard
from localpolicy.errors import RunError, WriteError
from localpolicy.model.network import Network
from localpolicy.runtime.files import whole_file


def whole_tables(tensors: Mapping[str, Tensor], *, split: Collection[str], shard: Shard | None) -> dict[str, Tensor]:
    """The same tensors, those named in `split` with the rows of all ranks. All ranks ask, the leader gets them.

    They are put together in its main memory, one after another.
    """
    if shard is None:
        return dict(tensors)
    whole: dict[str, Tensor] = {}
    gathered: dict[int, Tensor | None] = {}  # a tied head is the embedding: it stays one tensor
    for name, tensor in tensors.items():
        if name not in split:
            whole[name] = tensor
            continue
        place = tensor.data_ptr()
        if place not in gathered:
            gathered[place] = shard.ranks.gather(tensor)
        if (found := gathered[place]) is not None:
            whole[name] = found
    return whole


def stored(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors as they are stored: in main memory, each once (a tied head is the embedding)."""
    unique, seen = {}, set()
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen or not tensor.numel():
            unique[name] = tensor.detach().cpu().contiguous()
            seen.add(tensor.data_ptr())
    return unique


def save_weights(state: Mapping[str, Any], path: Path) -> None:
    """Tensors to safetensors."""
    with whole_file(path) as partial:
        try:
            save_file(stored(state), partial)
        except SafetensorError as error:  # it hides the errno; nothing but the disk can refuse tensors like these
            raise WriteError(path, str(error)) from None


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, types, shapes and numbers."""
    found = hashlib.sha256()
    for name, tensor in tensors:
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def digest_on_disk(path: Path) -> str | None:
    """The digest of the tensors in a file, read one at a time; None where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return digest((name, file.get_tensor(name)) for name in sorted(file.keys()))
    except (FileNotFoundError, SafetensorError):
        return None


def fill(network: Network, weights: dict[str, Tensor], *, source: Path) -> None:
    """Load weights that `save_weights` wrote into a network of the same shape."""
    try:
        found = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise RunError(f"{source} does not fit the network: {error}") from None
    missing = set(found.missing_keys) - ({"heads.policy.weight"} if network.config.tied else set())
    if missing or found.unexpected_keys:
        raise RunError(f"{source} does not fit: lacks {sorted(missing)}, has {sorted(found.unexpected_keys)} too many.")


def load_weights(path: Path, *, split: Collection[str] = (), shard: Shard | None = None) -> dict[str, Tensor]:
    """Tensors from safetensors, or an error that names the file; of those in `split` this rank's rows alone."""
    try:
        with safe_open(path, framework="pt") as file:
            return {
                name: file.get_slice(name)[shard.own] if shard is not None and name in split else file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 - not a dict
            }
    except FileNotFoundError:
        raise RunError(f"{path} is missing: training has not saved a policy yet.") from None
    except SafetensorError as error:
        raise RunError(f"{path} cannot be read ({error}): it is truncated or altered.") from None
