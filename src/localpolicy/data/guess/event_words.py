"""Likely rewards of events by the words in their names, and names that only say that an item was shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from localpolicy.data.column_names import plain
from localpolicy.data.rewards import RewardMap
from localpolicy.errors import ConfigError, DataError

MOST_CODES = 5  # up to this many whole numbers from 0 on may be codes of events, not ratings
MOST_EVENTS = 50  # a column with more values is no event: numbers are then a reward
UNKNOWN = 0.2  # reward of an event whose name has no known word
# Words in the name of an event -> its likely reward; the first that fits. English first, then other languages.
LIKELY_REWARDS = (
    (("unlike", "dislike", "downvote", "thumbsdown", "thumbdown", "remove", "skip"), 0.0),
    (("cart", "basket", "einkaufswagen", "warenkorb", "panier", "carrito", "carrello", "carrinho", "корзин", "カート",
      "加购", "购物车", "winkelwagen", "koszyk", "장바구니"), 0.5),
    (("chosen", "chose", "choice", "picked", "selected", "booked", "purchase", "buy", "bought", "transaction", "order",
      "checkout", "sale", "pay", "conversion", "kauf", "bestell",
      "achat", "achet", "commande", "compra", "acquist", "покуп", "заказ", "購入", "購買", "购买", "下单",
      "支付", "aankoop", "gekocht", "zakup", "구매"), 1.0),
    (("wish", "fav", "like", "share", "save", "follow", "subscribe", "merkliste", "gefallt", "收藏",
      "お気に入り"), 0.5),
    (("click", "view", "play", "listen", "watch", "read", "visit", "open", "detail", "pv", "klick", "ansicht", "aufruf",
      "vue", "clic", "consult", "vista", "visualiz", "просмотр", "клик", "閲覧", "クリック", "浏览", "点击", "cliq",
      "bekeken", "wyswietl", "조회", "클릭"), 0.2),
)  # fmt: skip
# Names of events that say that an item was shown and not answered: whole words, and parts of them.
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
    """Guess a reward map, with notes on events whose names have no known word."""
    numbers = [number(value) for value in values]
    if all(number is not None for number in numbers):
        known = [number for number in numbers if number is not None]
        top = max(known)
        codes = min(known) == 0 and len(known) <= MOST_CODES
        note = (
            f"the events {', '.join(values)} are read as ratings. If they are codes, name them, such as --rename "
            "0=view,1=cart,2=purchase"
        )
        return f">={0.8 * top:g}=1,>={0.6 * top:g}=0.5,*=0", (note,) if codes else ()
    if len(values) > MOST_EVENTS:
        raise DataError(
            f"{path}: the event column has {len(values)} different values: it is not one. Say which column it is "
            "(--columns event=NAME), or the reward of each event (--rewards)."
        )
    likely = {value.strip(): likely_reward(value) for value in values}  # stripped as in `--rewards`
    rewards = {value: UNKNOWN if reward is None else reward for value, reward in likely.items()}
    paid = [value for value, reward in rewards.items() if reward > 0]
    if len(paid) == 1:  # the only paying event, as in a column of 0 and 1, has the full reward
        rewards[paid[0]] = 1.0
    listed = ",".join(f"{value}={reward:g}" for value, reward in rewards.items())
    unsure = [value for value, reward in likely.items() if reward is None]
    note = (
        f"the reward of {', '.join(unsure)} is a guess ({rewards[unsure[0]]:g}): state it with --rewards"
        if unsure
        else ""
    )
    if len(unsure) == len(likely) > 1:
        note = (
            f"the rewards of {', '.join(unsure)} are not known: all are taken for equal, so nothing can be decided. "
            f"State them with --rewards {unsure[0]}=1,{unsure[1]}=0"
        )
    return listed, (note,) if unsure else ()


def likely_reward(event: str) -> float | None:
    """Return the likely reward of an event by its name; None if its name has no known word."""
    if says_nothing_came(event):
        return 0.0
    called = plain(event)
    return next((reward for words, reward in LIKELY_REWARDS if any(plain(word) in called for word in words)), None)


def says_nothing_came(event: str) -> bool:
    """Whether the event's name only says that an item was shown."""
    called = plain(event)
    return called in NOTHING_CAME or any(plain(part) in called for part in NOTHING_CAME_PARTS)


def reward_of(rewards: str, event: str) -> float:
    """Return the reward of an event by a reward map; 0 if the map lacks the event."""
    try:
        return RewardMap.parse(rewards).of(event)
    except (ConfigError, DataError):
        return 0.0


def number(value: str) -> float | None:
    """Convert a text to a number; None if it is not one."""
    try:
        return float(value)
    except ValueError:
        return None
