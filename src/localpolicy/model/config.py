"""Settings of the network: backbone, sizes, heads, and columns of the item table."""

from __future__ import annotations

from pydantic import Field

from localpolicy.settings import AUTO, OrAuto, Settings

# Settings of how the item table is read: no weight's shape depends on them.
OF_ITEM_TABLE = ("features", "shuffle_features", "id_dropout", "new_items")


class ModelConfig(Settings):
    """Settings of the network, the group `model` of a configuration."""

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
        None, description="feed each past item's event to the backbone (default: if events differ in reward, so that "
        "they tell the user's response)"
    )  # fmt: skip
    features: OrAuto[list[str]] = Field(
        AUTO, description="columns of the item table that an item's embedding is made of, plus a part of its own; "
        "auto: those that predict co-occurrence, popularity or reward"
    )  # fmt: skip
    shuffle_features: int | None = Field(
        None, ge=0, description="seed of a permutation of the item table's rows among the items: a control, which "
        "shows what columns without information bring; null: not permuted"
    )  # fmt: skip
    id_dropout: float = Field(
        0.1, ge=0, lt=1, description="share of the items that a step embeds by their features alone, if there are any"
    )
    new_items: float = Field(
        1.0, gt=0, description="largest probability of all items without events together in any context, relative to "
        "the others, if an item table describes them; the bound holds for served propensities too"
    )  # fmt: skip

    def settled(self) -> ModelConfig:
        """The settings with every `auto` at its fixed default, for a network that no log configures."""
        plain = {"width": 128, "blocks": 1, "dropout": 0.1, "features": []}
        return self.model_copy(update={name: value for name, value in plain.items() if getattr(self, name) == AUTO})
