"""The network's shape."""

from __future__ import annotations

from pydantic import Field

from localpolicy.settings import AUTO, OrAuto, Settings

# Settings that say what is read of the item table, and how: no weight's shape depends on them.
OF_ITEM_TABLE = ("features", "shuffle_features", "id_dropout", "new_items")


class ModelConfig(Settings):
    """The network's shape."""

    backbone: str = Field(
        "sasrec",
        description="what turns histories into states: sasrec, gated, gru, convolution, or package.module:Name",
    )
    width: OrAuto[int] = Field(AUTO, ge=1, le=65_536, description="size of embeddings and hidden states; auto: 128")
    blocks: OrAuto[int] = Field(
        AUTO, ge=1, le=1024, description="layers of the backbone; auto: 2 where a mean sequence has 50 actions, else 1"
    )
    heads: int = Field(1, ge=1, le=1024, description="attention heads (sasrec, gated)")
    dropout: OrAuto[float] = Field(
        AUTO, ge=0, lt=1, description="share of numbers dropped in training; auto: from 0.25 where the log has 30 "
        "events an item or fewer to 0.1 where it has 300"
    )  # fmt: skip
    tied: bool = Field(
        True, description="heads share the item embeddings: the policy's as they are, the others' through a projection"
    )
    event_embeddings: bool | None = Field(
        None, description="feed each past item's event to the backbone (default: where events differ in reward, so "
        "that they say what came of it)"
    )  # fmt: skip
    features: OrAuto[list[str]] = Field(
        AUTO, description="columns of the item table that an item's row is made of, beside what is its own; auto: "
        "those that tell something of what follows what, of how often items are taken or of what they earn"
    )  # fmt: skip
    shuffle_features: int | None = Field(
        None, ge=0, description="a seed by which rows of the item table are dealt out anew among the items: a control "
        "for what the same columns bring where they tell nothing; null: as they are"
    )  # fmt: skip
    id_dropout: float = Field(
        0.1, ge=0, lt=1, description="share of the items that are their features alone in a step, where there are any"
    )
    new_items: float = Field(
        1.0, gt=0, description="most that items without events may hold together in any context, relative to the "
        "others, where an item table says what they are like; a bound that holds in served propensities too"
    )  # fmt: skip

    def settled(self) -> ModelConfig:
        """Without `auto`, where no log decides."""
        plain = {"width": 128, "blocks": 1, "dropout": 0.1, "features": []}
        return self.model_copy(update={name: value for name, value in plain.items() if getattr(self, name) == AUTO})
