"""A client of the service, as the tests ask it, and what it wrote down."""

from __future__ import annotations

from localpolicy.serving.database import Database

HISTORY = [{"item": 100, "event": "click"}, {"item": 103, "event": "none"}]


def rows(tmp_path, sql: str) -> list[tuple]:
    database = Database(tmp_path / "log.db")
    try:
        return database.rows(sql)
    finally:
        database.close()


def ask(client, *, expect: int = 200, **changes) -> dict:
    answer = client.post("/v1/recommend", json={"history": HISTORY, "k": 3, **changes})
    assert answer.status_code == expect, answer.text
    return answer.json()
