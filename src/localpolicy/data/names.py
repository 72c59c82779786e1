"""What logs and lists call our columns: one table of names, for guesses, for others' lists, for errors."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Our column -> names that mean it, the surest first; compared in small letters without marks.
NAMES: dict[str, tuple[str, ...]] = {
    "sequence_id": (
        "sequenceid", "seqid", "sequence", "sessionid", "session", "visitid", "visit", "visitorid", "visitor", "userid",
        "user", "customerid", "customer", "clientid", "client", "memberid", "member", "uid", "basketid", "cookie",
        "personid", "person", "profileid", "deviceid",
    ),
    "item_id": (
        "itemid", "item", "productid", "product", "articleid", "article", "movieid", "movie", "trackid", "track",
        "songid", "song", "sku", "contentid", "content", "videoid", "video", "bookid", "book", "asin", "iid", "pid",
    ),
    "event": (
        "event", "eventtype", "eventname", "action", "actiontype", "behavior", "behaviour", "behaviortype", "what",
        "interaction", "interactiontype", "type", "rating", "stars", "answer", "response", "outcome",
    ),
    "timestamp": (
        "timestamp", "time", "eventtime", "datetime", "date", "createdat", "when", "ts", "unixtime", "occurredat",
        "timestampms", "timems", "tsms", "eventtimems", "timeus", "timens", "unixts", "epoch", "day",
    ),
    "propensity": ("propensity", "propensityscore", "pscore", "probability", "actionprobability", "prob"),
    "policy": ("policy", "policyversion"),
    "reward": ("reward",),
}  # fmt: skip
RATINGS = ("rating", "ratings", "stars", "overall", "grade")  # names of a column of numbers people gave
# Parts of names that make a varying number a likely reward: how much came of it.
REWARDING = (
    "reward", "ratio", "rating", "stars", "overall", "grade", "dwell", "duration", "watch", "playtime", "listen",
    "completion", "progress", "revenue", "price", "amount", "profit", "gmv", "value", "utility", "gain", "satisfaction",
    "like", "click", "conversion", "converted", "purchased", "label", "feedback", "count", "plays",
)  # fmt: skip


def plain(name: str) -> str:
    """Small letters and digits alone."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def columns_meant(names: Sequence[str], ours: Sequence[str] = tuple(NAMES)) -> dict[str, str]:
    """Our column -> theirs, each of theirs once, the surest names first."""
    called = {plain(name): name for name in reversed(names)}
    matches: dict[str, str] = {}
    for column in ours:
        known = (called[word] for word in NAMES[column] if word in called)
        match = next((name for name in known if name not in matches.values()), None)
        if match is not None:
            matches[column] = match
    return matches
