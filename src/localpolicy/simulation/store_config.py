"""Settings of a simulated store."""

from __future__ import annotations

from pydantic import Field

from localpolicy.settings import Settings


class StoreConfig(Settings):
    """Settings of a store: its items, its shoppers, and its logging policy."""

    items: int = Field(1000, ge=2, description="V, items of the catalogue")
    categories: int = Field(20, ge=1, description="categories, over which shoppers have their tastes")
    mean_length: float = Field(20.0, ge=1, description="mean impressions of a sequence, before the cut")
    max_length: int = Field(100, ge=1, description="longest sequence")
    popularity: float = Field(0.65, gt=0, le=1, description="stretch of popularity within a category; low: heavy tail")
    popularity_scale: float = Field(0.2, gt=0, description="share of a category at which its popularity bends down")
    category_tail: float = Field(0.7, ge=0, description="exponent of popularity over categories")
    quality: float = Field(0.7, ge=0, description="how far the logging policy follows a shopper's answers")
    temperature: float = Field(1.0, gt=0, description="entropy of the logging policy: higher is flatter")
    repeats: float = Field(0.2, ge=0, lt=1, description="share of impressions that re-show an answered item")
    exploration: float = Field(0.1, gt=0, le=1, description="share of the rest that is plain popularity")
    taste: float = Field(1.0, ge=0, description="spread of shoppers' tastes, in logits of a click")
    appeal: float = Field(0.7, ge=0, description="spread of items' appeal, in logits of a click")
    item_quality: float = Field(0.5, ge=0, description="spread of items' quality, in logits of a purchase")
    intent: float = Field(0.5, ge=0, description="spread of shoppers' first purchase intent, in logits")
    click_base: float = Field(-1.4, description="logit of a typical click")
    purchase_base: float = Field(-2.9, description="logit of a typical purchase after a click")
    bait: float = Field(0.6, ge=0, le=1, description="how far appealing items are shallow (correlation)")
    lookahead: float = Field(0.2, ge=0, description="change of purchase intent per click on an item of depth 1")
