"""Lists of `/v1/rerank`, from the folder that the service's log was rotated to, as the two tables of a log of requests.

Pages of one draw are one list. It ends where it was last seen to. Boosts and resting items are in its probabilities,
pins at its top are `pinned`, and a list that showed the ranker's own order is pinned as a whole. Lists with other pins,
or with groups, are left out: their places have no law of one request.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from localpolicy.errors import DataError
from localpolicy.limits import CONTEXT, NO_ANSWER
from localpolicy.ranker.rules import Openings, Rules, openings, stated_law

RAW = "_requests"  # lists as they were logged, next to the events
MADE_OF = "rerank"  # in a list's content: candidates, scores, probabilities, rules, context
EVENTS = ("request", "item_id", "event", "reward", "place", "share", "propensity")
log = logging.getLogger(__name__)


def is_served(given: Any) -> bool:
    """Whether a path is a folder that `lpi rotate` has written."""
    return isinstance(given, str | Path) and (Path(given) / RAW).is_dir()


def served_tables(folder: Path | str) -> tuple[pa.Table, pa.Table]:
    """Tables of requests and outcomes from a folder's reranked lists."""
    seen, outcomes = _seen(Path(folder))
    requests, left_out = [], Counter[str]()
    for pages in _draws(Path(folder)).values():
        row = _request(pages, seen)
        if isinstance(row, str):
            left_out[row] += 1
        else:
            requests.append(row)
    told = ", ".join(f"{count:,} {why}" for why, count in left_out.most_common())
    if left_out:
        log.info("left out of %s: %s", folder, told)
    if not requests:
        gone = f": left out are {told}. Draw some lists without such rules" if left_out else ""
        raise DataError(f"{folder} holds no list of /v1/rerank that could be learnt from{gone}.")
    draw_of = {page: row["request"] for row in requests for page in row.pop("_pages")}
    answers = [{**answer, "request": draw_of[answer["request"]]} for answer in outcomes if answer["request"] in draw_of]
    names = dict.fromkeys(name for row in requests for name in row)
    lists = {name for row in requests for name, value in row.items() if isinstance(value, list)}
    for row in requests:
        for name in names.keys() - row.keys():
            row[name] = [None] * len(row["candidates"]) if name in lists else None
    kinds = pa.schema(
        [("request", pa.string()), ("item", pa.string()), ("event", pa.string()), ("reward", pa.float64())]
    )
    try:
        return pa.Table.from_pylist(requests), pa.Table.from_pylist(answers, schema=kinds)
    except pa.ArrowException as error:
        raise DataError(f"columns of {folder} mix kinds of values: {str(error)[:200]}") from None


def _seen(folder: Path) -> tuple[dict[str, tuple[int, float]], list[dict[str, Any]]]:
    """Number of seen places of each list, with the share of requests that was logged; and all answers."""
    places: dict[str, tuple[int, float]] = {}
    outcomes = []
    for file in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(file, columns=list(EVENTS)).to_pylist():
            if row["event"] == CONTEXT:
                continue
            places[row["request"]] = max(places.get(row["request"], (0, 1.0))[0], row["place"] + 1), row["share"]
            if row["event"] != NO_ANSWER or row["reward"]:
                answer = {name: row[name] for name in ("request", "event", "reward")}
                outcomes.append({**answer, "item": str(row["item_id"])})
    return places, outcomes


def _draws(folder: Path) -> Mapping[str, list[dict[str, Any]]]:
    """Reranked lists by their draw."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(folder):
        content = json.loads(row["content"]) if row["content"] else {}
        if MADE_OF in content:
            found[content[MADE_OF]["draw"]].append({**row, **content[MADE_OF], "shown": json.loads(row["items"])})
    return found


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    columns = ["id", "time", "person", "items", "policy", "mode", "content"]
    for file in sorted((folder / RAW).glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=columns):
            yield from batch.to_pylist()


def _request(pages: list[dict[str, Any]], seen: Mapping[str, tuple[int, float]]) -> dict[str, Any] | str:
    """Row of requests for one list, or the reason why it is left out."""
    first = min(pages, key=lambda page: page["page"])
    shown: list[Any] = []
    joined: list[str] = []
    if first["page"] != 1:
        return "without their first page"
    for page in sorted(pages, key=lambda page: page["page"]):
        if page["above"] != shown:  # asked for twice, or after a page that was not seen to its end
            continue
        count, _ = seen.get(page["id"], (0, 1.0))
        shown = [*shown, *page["shown"][:count]]
        joined += [page["id"]]
    if not shown:
        return "that nobody saw"
    items = [str(item) for item in first["items"]]
    with np.errstate(divide="ignore"):
        opened = Openings(np.log(np.array(first["probabilities"])), {})
    if first["mode"] != "top":
        resting = [str(item) for item in first["resting"]]
        rules = Rules.parse(first["rules"])
        opened = openings(opened.logits, len(first["shown"]), rules, items, first["columns"], resting)
    stated = stated_law(opened)
    if stated is None:
        return "with groups, or with pins below others"
    return {
        **first["context"], **first["columns"], "request": first["draw"], "time": first["time"] / 1000,
        "person": first["person"], "candidates": items, "scores": first["scores"],
        "probabilities": stated.probabilities, "shown": [str(item) for item in shown],
        "pinned": len(shown) if first["mode"] == "top" else min(stated.pinned, len(shown)),
        "policy": first["policy"], "weight": 1 / seen[first["id"]][1], **first.get("law", {}), "_pages": joined,
    }  # fmt: skip
