"""What the names of events say: how much each is likely worth, and which only say that an item was shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from localpolicy.data.column_names import plain
from localpolicy.data.rewards import RewardMap
from localpolicy.errors import ConfigError, DataError

MOST_CODES = 5  # events that are so few numbers, from 0 on, may be codes and no ratings
MOST_EVENTS = 50  # a column with more values is no event: numbers are then a reward
UNKNOWN = 0.2  # the reward of an event whose name says nothing
# Words in the name of an event -> its likely reward; the first that fits. English first, then other languages.
LIKELY_REWARDS = (
    (("unlike", "dislike", "downvote", "thumbsdown", "thumbdown", "remove", "skip"), 0.0),
    (("cart", "basket", "einkaufswagen", "warenkorb", "panier", "carrito", "carrello", "carrinho", "корзин", "カート",
      "加购", "购物车", "winkelwagen", "koszyk", "장바구니"), 0.5),
    (("chosen", "chose", "choice", "picked", "booked", "purchase", "buy", "bought", "transaction", "order", "checkout",
      "sale", "pay", "conversion", "kauf", "bestell",
      "achat", "achet", "commande", "compra", "acquist", "покуп", "заказ", "購入", "購買", "购买", "下单",
      "支付", "aankoop", "gekocht", "zakup", "구매"), 1.0),
    (("wish", "fav", "like", "share", "save", "follow", "subscribe", "merkliste", "gefallt", "收藏",
      "お気に入り"), 0.5),
    (("click", "view", "play", "listen", "watch", "read", "visit", "open", "detail", "pv", "klick", "ansicht", "aufruf",
      "vue", "clic", "consult", "vista", "visualiz", "просмотр", "клик", "閲覧", "クリック", "浏览", "点击", "cliq",
      "bekeken", "wyswietl", "조회", "클릭"), 0.2),
)  # fmt: skip
# Events that say that an item was shown, and nothing came of it: whole words, and parts of them.
NOTHING_CAME = (
    "shown",
    "show",
    "showed",
    "display",
    "displayed",
    "served",
    "imp",
    "exposed",
    "none",
    "nothing",
    "noaction",
    "noresponse",
    "noreaction",
    "noanswer",
    "ignored",
    "angezeigt",
    "affichage",
    "mostrado",
)
NOTHING_CAME_PARTS = (
    "impression",
    "exposure",
    "noclick",
    "notclicked",
    "nonclick",
    "unclicked",
    "einblendung",
    "показ",
    "曝光",
    "表示",
)


def guess_rewards(values: Mapping[str, int], path: Path) -> tuple[str, tuple[str, ...]]:
    """A reward map, and what to say of events whose names say nothing."""
    numbers = [number(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        top = max(known)
        codes = min(known) == 0 and len(known) <= MOST_CODES
        said = (
            f"the events {', '.join(values)} are read as ratings. If they are codes, name them, such as --rename "
            "0=view,1=cart,2=purchase"
        )
        return f">={0.8 * top:g}=1,>={0.6 * top:g}=0.5,*=0", (said,) if codes else ()
    if len(values) > MOST_EVENTS:
        raise DataError(
            f"{path}: the event column has {len(values)} different values: it is not one. Say which column it is "
            "(--columns event=NAME), or what each event is worth (--rewards)."
        )
    likely = {value.strip(): likely_reward(value) for value in values}  # as rewards that are given are read
    rewards = {value: UNKNOWN if reward is None else reward for value, reward in likely.items()}
    paid = [value for value, reward in rewards.items() if reward > 0]
    if len(paid) == 1:  # worth less than nothing else: as in a column of 0 and 1 that is named for it
        rewards[paid[0]] = 1.0
    listed = ",".join(f"{value}={reward:g}" for value, reward in rewards.items())
    unsure = [value for value, reward in likely.items() if reward is None]
    note = (
        f"what {', '.join(unsure)} is worth is a guess ({rewards[unsure[0]]:g}): say it with --rewards"
        if unsure
        else ""
    )
    if len(unsure) == len(likely) > 1:
        note = (
            f"what {', '.join(unsure)} are worth is not known: all are taken for the same, so nothing can be decided. "
            f"Say it with --rewards {unsure[0]}=1,{unsure[1]}=0"
        )
    return listed, (note,) if unsure else ()


def likely_reward(event: str) -> float | None:
    """What an event of this name is likely worth; None where its name says nothing."""
    if says_nothing_came(event):
        return 0.0
    called = plain(event)
    return next((reward for words, reward in LIKELY_REWARDS if any(plain(word) in called for word in words)), None)


def says_nothing_came(event: str) -> bool:
    """Whether the event says no more than that an item was shown."""
    called = plain(event)
    return called in NOTHING_CAME or any(plain(part) in called for part in NOTHING_CAME_PARTS)


def worth(rewards: str, event: str) -> float:
    """What a reward map says of an event; 0 where it says nothing."""
    try:
        return RewardMap.parse(rewards).of(event)
    except (ConfigError, DataError):
        return 0.0


def number(value: str) -> float | None:
    """A text as a number, or None."""
    try:
        return float(value)
    except ValueError:
        return None
