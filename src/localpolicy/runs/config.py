"""Configuration of a run, and the paper's presets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from localpolicy import plugins
from localpolicy.data.config import WindowConfig
from localpolicy.errors import ConfigError, nearest, shown
from localpolicy.limits import LARGEST_SEED
from localpolicy.model.config import ModelConfig
from localpolicy.objectives import OBJECTIVES, AnyObjective, LPIBandit, Objective, objective_of
from localpolicy.runtime.files import read_yaml
from localpolicy.settings import AUTO, OrAuto, Settings


class TrainConfig(Settings):
    """Settings of training: optimiser, epochs, selection of weights, device; the group `train`."""

    epochs: OrAuto[int] = Field(
        AUTO, ge=1, description="passes over the training sequences, at most; auto: 200, ended by patience"
    )
    batch_size: OrAuto[int] = Field(
        AUTO, ge=1, description="sequences per step; auto: the largest power of two from 4 to 256 that leaves 200 "
        "steps an epoch"
    )  # fmt: skip
    learning_rate: float = Field(1e-3, gt=0, description="Adam's step size")
    weight_decay: OrAuto[float] = Field(
        AUTO, ge=0, description="decoupled weight decay (of gains and biases 0.4 of it); auto: from 1 where the log "
        "has 30 events an item or fewer to 0 where it has 300, less where it has more than 150,000 events, or 400 "
        "steps an epoch"
    )  # fmt: skip
    average: float = Field(
        0.999, ge=0, lt=1, description="what is validated and kept is a running average of the weights with this share "
        "of the old at each step (Polyak and Juditsky 1992); 0: the weights themselves"
    )  # fmt: skip
    gradient_clip: float | None = Field(None, gt=0, description="largest norm of the gradient")
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="decides weights, data order, dropout and coins")
    device: str = Field("auto", description="cpu, cuda or auto")
    choose_on: Literal["all", "half"] = Field(
        "all", description="validation sequences that choose the epoch: all, or every second one; with half, the "
        "others may choose the slope and β of a policy that is made of this run (objective.logging)"
    )  # fmt: skip
    select: str = Field(
        "auto", description="validation figure that picks the epoch, such as purchase.nDCG@20 + 0.2*click.nDCG@20; "
        "auto: logp for mle (on sparse interaction logs that of a mixture with popularity, plus "
        "3*all.nDCG@20); else value_low (the lower bound of the policy's value) if the log has propensities, and the "
        "reward-weighted sum of nDCG@20 per event otherwise (AR@1 if rewards are not per event)"
    )  # fmt: skip
    calibrate: bool | None = Field(
        None, description="mle alone: fit the temperature of the logits to the held-out likelihood before weights "
        "are judged, and keep them so scaled; rankings stay as they are (default: for sparse interaction logs)"
    )  # fmt: skip
    estimator: str = Field(
        "snips", description="how a policy's value is estimated where propensities choose (epochs by value_low, β), by "
        "any estimator with a lower bound: as snips; dr, with items' mean rewards; log_smoothing, for rewards >= 0, "
        "whose bound holds for any log size"
    )  # fmt: skip
    validate_every: int | None = Field(
        None,
        ge=1,
        description="steps between validations, in addition to those at epoch ends; each is a record of its own",
    )
    patience: OrAuto[int | None] = Field(
        AUTO, ge=1, description="validations without a better one before training stops (one per epoch, unless "
        "validate_every adds more); null trains all epochs, as the paper's presets do; auto: 1500 steps, from 3 to 12 "
        "epochs; 12 on sparse interaction logs"
    )  # fmt: skip
    minutes: float | None = Field(
        None, gt=0, description="time limit in minutes, after which training stops as if out of patience: after a "
        "validation, within an epoch if need be. The number of steps depends on the machine"
    )  # fmt: skip
    min_history: int = Field(1, ge=0, description="actions that must come before a position for it to be evaluated")
    checkpoint_every: int | None = Field(
        None, ge=1, description="steps between checkpoints, in addition to those at epoch ends"
    )
    checkpoint_seconds: float | None = Field(
        None, ge=0, description="least seconds between checkpoints at epoch ends (default: 0 on a CPU; 30 on a GPU, "
        "where an epoch may take less time than saving it)"
    )  # fmt: skip
    catalogue: Literal["auto", "fused", "chunked", "dense"] = Field(
        "auto", description="backend of the catalogue statistics; auto: fused kernels on CUDA, else chunked"
    )
    sampled: int | None = Field(
        None, ge=2, description="number of items that a training step on a CPU sums over, drawn by their counts and "
        "weighed by 1/chance; measurements sum over all items (default: training does, too)"
    )  # fmt: skip
    capture: bool = Field(
        True, description="on CUDA, replay a step as one captured graph; where that cannot be, steps run one by one "
        "and the manifest says why"
    )  # fmt: skip
    shard_catalogue: bool = Field(
        False, description="split embedding and head rows over processes instead of copying them to each"
    )
    precision: Literal["float32", "bf16"] = Field(
        "float32", description="of the products with the catalogue in training; bf16 on CUDA devices that have it: "
        "weights, backbone, optimiser, sums over the catalogue and validation stay float32"
    )  # fmt: skip
    deterministic: bool = Field(
        False, description="refuse operations whose result may differ between equal runs; on a CPU equal runs are "
        "equal without it, CUDA needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment"
    )  # fmt: skip
    warm_start: str | None = Field(
        None, description="folder of an older run whose weights are the start; items are matched by id"
    )
    tensorboard: bool = Field(False, description="also write every record as TensorBoard events to RUN/tensorboard")


class Config(Settings):
    """Settings of a run: everything that decides it except the data."""

    data: WindowConfig = Field(WindowConfig(), description="how sequences are cut into windows")
    model: ModelConfig = Field(ModelConfig(), description="the network's shape")
    objective: AnyObjective = Field(LPIBandit(), description="what is maximised")
    train: TrainConfig = Field(TrainConfig(), description="how it is maximised, and which weights are kept")
    auto: dict[str, str] = Field({}, description="of a resolved config: what was chosen from the log, and why")

    def trained_with(self, **changes: Any) -> Config:
        """A copy with other settings of `train`, such as seed=3, without validation."""
        return self.model_copy(update={"train": self.train.model_copy(update=changes)})


# Settings of `train` that decide where and how fast a run is computed: other values give the same run.
COMPUTED_BY = {"device", "minutes", "shard_catalogue", "tensorboard", "catalogue", "capture", "checkpoint_seconds"}

PLAIN_TRAINING = {"weight_decay": 0.0, "average": 0.0}
# The paper's settings (sections 4.1 and 4.2), and the untied heads of its lineage; `fixed`: small settings that are the
# same for any log.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "fixed": {
        "data": {"length": 20},
        "model": {"blocks": 1, "heads": 1, "width": 64, "dropout": 0.1},
        "train": {"batch_size": 256, "epochs": 20, "patience": 3, **PLAIN_TRAINING},
    },
    "rl": {
        "data": {"length": 20},
        "model": {"blocks": 1, "heads": 1, "width": 64, "dropout": 0.1, "tied": False, "event_embeddings": False},
        "train": {"batch_size": 256, "epochs": 20, "patience": None, "calibrate": False, **PLAIN_TRAINING},
    },
    "bandit": {
        "data": {"length": 200, "last": 50},
        "model": {"blocks": 2, "heads": 8, "width": 200, "dropout": 0.2, "tied": False, "event_embeddings": False},
        "train": {"batch_size": 128, "epochs": 30, "patience": None, "calibrate": False, **PLAIN_TRAINING},
    },
}


def configure(
    *,
    preset: str | None = None,
    file: Path | None = None,
    changes: Iterable[str] = (),
    short: Mapping[str, Any] | None = None,
) -> Config:
    """A config from a preset, then a YAML file, then `key=value` changes, then short forms; later ones win."""
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"no preset '{preset}'{nearest(preset, PRESETS)}")
    values: dict[str, Any] = {group: dict(settings) for group, settings in PRESETS.get(preset or "", {}).items()}
    for group, settings in (_read(file) if file else {}).items():
        if not isinstance(settings, dict):
            raise ConfigError(f"{file}: '{group}' must be a group of settings, got {shown(settings)}.")
        values.setdefault(group, {}).update(settings)
    given = [f"{key}={value}" for key, value in (short or {}).items() if value is not None]
    assignments = [*changes, *given]
    for assignment in assignments:  # what the user names here is imported; what a file names is not
        key, _, value = assignment.partition("=")
        if key.strip() in ("objective.name", "model.backbone") and ":" in value:
            plugins.load(value.strip())
        if key.strip() == "objective.name" and values.get("auto") and values["objective"]["name"] != value.strip():
            values["objective"] = {}  # a resolved file states all settings of its own objective; this is another
    return Config.parse(values).with_changes(assignments)


def setting_fields(objective: type[Objective] | None = None) -> dict[str, Any]:
    """Type of every setting by `group.key`, for one objective class or for all of ours."""
    classes: dict[str, list[type[Settings]]] = {
        "data": [WindowConfig],
        "model": [ModelConfig],
        "objective": [objective] if objective else list(OBJECTIVES.values()),
        "train": [TrainConfig],
    }
    fields = {
        f"{group}.{key}": field.annotation
        for group, models in classes.items()
        for model in models
        for key, field in model.model_fields.items()
    }
    return {**fields, "objective.name": str}


def objective_fields() -> dict[str, FieldInfo]:
    """Fields of all settings that only our objectives have, by name."""
    others = {name for group in (TrainConfig, ModelConfig, WindowConfig) for name in group.model_fields}
    found: dict[str, FieldInfo] = {}
    for objective in OBJECTIVES.values():
        for name, field in objective.model_fields.items():
            if name not in others:
                found.setdefault(name, field)
    return found


def option_key(name: str) -> str:
    """Key that an option of `lpi train` is short for: `width` -> `model.width`."""
    groups: dict[str, type[Settings]] = {"train": TrainConfig, "model": ModelConfig, "data": WindowConfig}
    return next((f"{group}.{name}" for group, one in groups.items() if name in one.model_fields), f"objective.{name}")


def setting_key(name: str, objective: type[Objective] | None = None, *, source: str = "settings") -> str:
    """`width` -> `model.width`, if a single group has such a key; ConfigError, naming `source`, for any other name."""
    known = setting_fields(objective)
    matching = [key for key in known if name in (key, key.partition(".")[2])]
    if len(matching) != 1:
        text = (
            f": it is one of {', '.join(matching)}"
            if matching
            else nearest(name, {key if "." in name else key.partition(".")[2] for key in known})
        )
        raise ConfigError(f"{source}: no single setting '{name}'{text}")
    return matching[0]


def config_of(objective: Any = None, base: Config | None = None, **settings: Any) -> Config:
    """A config from an objective (a name, a class or an object) and settings by name: `config_of("mle", epochs=5)`."""
    config = base or Config()
    values = config.model_dump(exclude_unset=True)
    if objective is not None:
        values["objective"] = objective_of(objective)
    elif "objective" in values:
        values["objective"] = config.objective
    chosen = values.get("objective", config.objective)
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        group, _, key = setting_key(name, type(chosen)).partition(".")
        if group == "objective":
            changes[key] = value
        else:
            values.setdefault(group, {})[key] = value
    if changes:
        values["objective"] = objective_of({**chosen.model_dump(exclude_unset=True), **changes})
    return Config.parse(values)


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        raise ConfigError(f"{file} does not exist; expected a YAML file of settings.")
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: expected groups of settings (data, model, objective, train), got {shown(content)}.")
    return content
