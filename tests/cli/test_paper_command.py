"""`lpi paper` and `lpi sweep` at the command line: forms written, exit codes, a limit that can be gone on from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import commands
import pytest
import warm
from shop_logs import write_shop

from localpolicy.cli.main import app

SMALL = ("--set", "train.epochs=1", "--set", "model.width=4", "--set", "train.batch_size=64", "--device", "cpu")


def lpi(*arguments, code=0, env=None):
    done = warm.python("-m", "localpolicy", *arguments, cwd=Path.cwd(), env={**os.environ, **(env or {})})
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("paper", "tabel3"), "did you mean 'table3'"),
        (("paper", "table3", "--data", "nowhere", "--out", "out"), "does not exist"),
        (("paper", "table3", "--fast", "--simulate", "nowhere", "--out", "out"), "--simulate: no set"),
        (("sweep", "nowhere", "--objective", "lpi_rl", "--over", "beta=1", "--out", "out"), "lpi prepare"),
    ],
)
def test_mistakes_end_with_code_2(words, says, tmp_path):
    words = [str(tmp_path / word) if word in ("nowhere", "out") else word for word in words]
    done = commands.lpi(*words)
    assert done.returncode == 2 and says in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["figure-beta", "figure-lambda", "table3"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_split_with_too_few_purchases_is_refused_before_training(tmp_path, what, count):
    """Before: a TypeError after all was trained, or "did you mean 'repeat.nDCG@20'"."""
    split = "test" if what == "table3" else "validation"
    write_shop(tmp_path / "data", bought={split: count})
    done = commands.lpi("paper", what, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and f"the {split} split of" in done.stderr
    assert f"has {count} sequences with a purchase; at least 2 are needed" in done.stderr


@pytest.mark.slow
def test_a_table_can_be_made_in_pieces_without_duckdb_and_altair(tmp_path):
    """As on a GPU machine that has the least: a time limit first, then the whole."""
    write_shop(tmp_path / "data")
    for name in ("duckdb", "altair", "vl_convert"):
        (tmp_path / "bare" / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / "bare" / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')\n")
    bare = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "bare"), os.environ.get("PYTHONPATH", "")])}
    line = ("paper", "table3", "--data", tmp_path / "data", "--out", tmp_path / "out", "--only", "sqn,lpi_rl")
    line += ("--betas", "1", "--lambdas", "1", "--seeds", "1", "--processes", "1", "--keep", "figures", *SMALL)
    early = lpi(*line, "--minutes", "0.0001", code=130, env=bare)
    assert "the same command continues" in early.stderr
    assert "NOT COMPLETE" in (tmp_path / "out" / "table3.md").read_text()
    lpi(*line, env=bare)
    for form in ("json", "md", "tex", "html"):
        assert (tmp_path / "out" / f"table3.{form}").stat().st_size > 500
    content = json.loads((tmp_path / "out" / "table3.json").read_text())["data"]
    assert list(content["policies"]) == ["sqn", "lpi_rl"]
    assert content["missing"] == []


def test_every_file_is_there_before_anything_is_printed(tmp_path, monkeypatch):
    """`lpi … | head -1` ends the program at the first table."""
    pytest.importorskip("altair")

    def unread(*given, **options):
        raise SystemExit(141)

    monkeypatch.setattr("localpolicy.cli.output.show", unread)
    write_shop(tmp_path / "data")
    line = ("lpi", "paper", "figure-beta", "--data", tmp_path / "data", "--out", tmp_path / "out", "--betas", "1")
    monkeypatch.setattr("sys.argv", [str(word) for word in (*line, "--processes", "1", *SMALL)])
    with pytest.raises(SystemExit, match="141"):
        app()
    assert {f"figure-beta.{form}" for form in ("json", "md", "tex", "html", "svg", "png")} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
