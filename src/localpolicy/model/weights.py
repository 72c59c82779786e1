"""Weights on disk: safetensors with whole tables, however many ranks hold their rows.

So any number of processes can load a run, or resume it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from localpolicy.catalogue.shards import Shard
from localpolicy.errors import RunError
from localpolicy.runtime.files import whole_file

OF_FEATURES = re.compile(r"(logging\.|critics\.\d+\.)?features\.")  # but not a backbone's parameter of that name
DTYPES = {torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16"}


def whole_tables(tensors: Mapping[str, Tensor], *, split: Collection[str], shard: Shard | None) -> dict[str, Tensor]:
    """Tensors with the rows of all ranks for those named in `split`, gathered on the leader (a collective).

    They are assembled in the leader's main memory, one after another.
    """
    if shard is None:
        return dict(tensors)
    whole: dict[str, Tensor] = {}
    gathered: dict[int, Tensor | None] = {}  # a tied head is the embedding: it stays one tensor
    for name, tensor in tensors.items():
        if name not in split:
            whole[name] = tensor
            continue
        address = tensor.data_ptr()
        if address not in gathered:
            gathered[address] = shard.ranks.gather(tensor)
        if (table := gathered[address]) is not None:
            whole[name] = table
    return whole


def unique(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """State without repeated tensors: a tied head is dropped in favour of the embedding."""
    kept, seen = {}, set()
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen or not tensor.numel():
            kept[name] = tensor.detach()
            seen.add(tensor.data_ptr())
    return kept


def stored(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors as they are stored: in main memory, each once."""
    return {name: tensor.cpu().contiguous() for name, tensor in unique(state).items()}


def save_weights(state: Mapping[str, Any], path: Path) -> None:
    """Write tensors to a safetensors file, whole or not at all."""
    with whole_file(path) as partial:
        write_tensors(stored(state), partial)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write the bytes that `safetensors.torch.save` gives, one tensor after another.

    Done here because `save` doubles the memory, and `save_file` writes through a hidden file of its own in the folder:
    a kill leaves it there under a random name, and the finished file is readable by its owner alone.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so each is aligned
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        kind = {"dtype": DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape)}
        header[name] = {**kind, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(_bytes(tensors[name]))


def _bytes(tensor: Tensor) -> memoryview:
    """Memory of a tensor, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over names, types, shapes and numbers."""
    sha = hashlib.sha256()
    for name, tensor in tensors:
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(_bytes(tensor))
    return sha.hexdigest()


def digest_on_disk(path: Path) -> str | None:
    """Digest of the tensors in a file, read one at a time; None if it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return digest((name, file.get_tensor(name)) for name in sorted(file.keys()))
    except (FileNotFoundError, SafetensorError):
        return None


def fill(network: nn.Module, weights: dict[str, Tensor], *, source: Path) -> None:
    """Load weights that `save_weights` wrote into a network of the same shape."""
    try:
        result = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise RunError(f"{source} does not fit the network: {error}") from None
    # A tied head is the embedding, and is stored once.
    present = {parameter.data_ptr() for name, parameter in network.named_parameters() if name in weights}
    state = network.state_dict()
    missing = {name for name in result.missing_keys if state[name].data_ptr() not in present}
    if missing or result.unexpected_keys:
        raise RunError(
            f"{source} does not fit: lacks {sorted(missing)}, has {sorted(result.unexpected_keys)} too many."
        )


def refuse_other_shapes(network: nn.Module, path: Path) -> None:
    """Raise RunError if the tensors in a file do not fit a network, which may be on the `meta` device and cost nothing.

    So an altered description is found before memory is allocated for it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (FileNotFoundError, SafetensorError):
        return  # `load_weights` says so
    for name, tensor in network.state_dict().items():
        if name in shapes and shapes[name] != tuple(tensor.shape):
            raise RunError(
                f"{path} does not fit the network: {name} is {shapes[name]} there, and {path.parent / 'policy.json'} "
                f"says {tuple(tensor.shape)}. One of the two was altered."
            )


def refuse_broken(weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise RunError if a number is not finite: the lists would be meaningless."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise RunError(f"{path} holds numbers that are not finite (in {name}): it was altered. Train again.")


def without_features(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of features, and those of the network itself (see `Network.plain_state`)."""
    learnt = {name for name in weights if OF_FEATURES.match(name)}
    return {name: weights[name] for name in learnt}, {name: weights[name] for name in weights if name not in learnt}


def load_weights(path: Path, *, split: Collection[str] = (), shard: Shard | None = None) -> dict[str, Tensor]:
    """Read tensors from safetensors, those in `split` with this rank's rows alone; RunError if that fails."""
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
