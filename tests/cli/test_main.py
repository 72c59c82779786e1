"""The command line: fast help, exit codes, results to stdout and talk to stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import commands
import pytest
import warm
from small_logs import write_small

from localpolicy.cli.main import VERBS, main
from localpolicy.cli.output import UNREAD
from localpolicy.errors import DataError
from localpolicy.serving.doctor import EXTRAS, REQUIRED
from localpolicy.serving.recommend import recommend


def here(*arguments, code=0):
    done = commands.lpi(*arguments)
    assert done.returncode == code, done
    return done


def lpi(*arguments, code=0):
    done = warm.python("-m", "localpolicy", *arguments, cwd=Path.cwd())
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def test_help_lists_every_verb_and_imports_no_torch():
    done = lpi("--help")
    assert all(verb in done.stdout for verb in VERBS)
    check = (
        "import sys; from localpolicy.cli.main import app; print([m for m in ('torch', 'pyarrow') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_a_misspelt_verb_names_the_nearest():
    assert "did you mean 'train'" in lpi("trian", code=2).stderr


def test_doctor_tells_what_is_found():
    done = lpi("doctor")
    for word in ("localpolicy", "torch", "cpu", "extra: spark"):
        assert word in done.stdout


def test_doctor_looks_for_all_that_is_declared():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    not_for_users = {"check", "docs", "dev"}
    extras = {extra: packages for extra, packages in project["optional-dependencies"].items()
              if extra not in not_for_users}  # fmt: skip

    def named(requirements: list[str]) -> tuple[str, ...]:
        return tuple(re.split(r"[\[<>=; ]", each)[0] for each in requirements)

    assert named(project["dependencies"]) == REQUIRED
    assert {extra: named(packages) for extra, packages in extras.items()} == EXTRAS


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["gate", "--help"], ["train", "nowhere"]])
def test_nobody_reading_is_no_fault_and_no_yes(arguments):
    """typer, rich and `print` each meet the closed pipe in a way of their own."""
    gone, pipe = os.pipe()
    os.close(gone)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "localpolicy", *arguments],
            stdout=pipe,
            stderr=pipe if arguments[0] == "train" else subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(pipe)
    assert done.returncode == UNREAD
    assert not done.stderr


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """A data set and a run, made through the command line."""
    folder = tmp_path_factory.mktemp("walk")
    write_small(folder / "data")
    done = lpi(
        "train", folder / "data", "--objective", "lpi_cb", "--beta", "0.3", "--epochs", "2", "--seed", "3",
        "--out", folder / "run", "--set", "model.width=8", "--set", "train.batch_size=16",
    )  # fmt: skip
    return folder, done


def test_train_prints_its_result_to_stdout(walked):
    _, done = walked
    assert "selected epoch" in done.stdout
    assert "training lpi_cb" in done.stderr
    assert "training lpi_cb" not in done.stdout


def test_train_refuses_and_says_how_to_resume(walked):
    folder, _ = walked
    assert "--force" in here("train", folder / "data", "--objective", "mle", "--out", folder / "run", code=2).stderr
    assert (
        "did you mean 'lpi_cb'"
        in here("train", folder / "data", "--objective", "lpi_bc", "--out", folder / "x", code=2).stderr
    )
    assert "lpi prepare" in here("train", folder, "--objective", "mle", "--out", folder / "x", code=2).stderr
    assert "--out is missing" in here("train", folder / "data", "--objective", "mle", code=2).stderr
    assert not (folder / "x").exists()


def test_print_config_can_be_fed_back(walked):
    folder, _ = walked
    printed = here(
        "train",
        folder / "data",
        "--preset",
        "bandit",
        "--objective",
        "lpi_cb_weighted",
        "--set",
        "objective.cap=5",
        "--print-config",
    ).stdout
    (folder / "config.yaml").write_text(printed)
    again = here("train", folder / "data", "--config", folder / "config.yaml", "--print-config").stdout
    assert again == printed
    assert "length: 200" in printed
    assert "cap: 5" in printed


def test_recommend_writes_one_list_per_history(walked):
    folder, _ = walked
    lines = [{"history": [100, 103], "events": ["click", "none"]}, {"history": []}, {"history": [999]}]
    (folder / "histories.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for extra in ((), ("--sample", "--seed", "1"), ("--beta", "0.5")):
        here(
            "recommend",
            folder / "run",
            "--histories",
            folder / "histories.jsonl",
            "-k",
            4,
            "--out",
            folder / "lists",
            *extra,
        )
        lists = [json.loads(line) for line in (folder / "lists").read_text().splitlines()]
        assert [len(line["items"]) for line in lists] == [4, 4, 4]
        assert all(100 <= item < 112 for line in lists for item in line["items"])
        assert ("propensity" in lists[0]) == ("--sample" in extra)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"history": [100]}\n{"histroy": [1]}\n', "line 2: expected"),
        (b'{"history": [100]}\n{"history": [[1]]}\n', "line 2: expected"),
        (b'{"history": ["100"]}\n', "line 1: expected .* whole numbers, as in the log"),
        (b'{"history": [100.5]}\n', "whole numbers"),
        (b'{"history": [true]}\n', "whole numbers"),
        (b'{"history": [null]}\n', "whole numbers"),
        (b'{"history": [100], "events": 5}\n', 'line 1: expected "events"'),
        (b'{"history": [100]}\n\n', "line 2: not JSON"),
        (b'{"history": ["caf\xe9"]}\n', "line 1: not UTF-8"),
        (None, "does not exist"),
        ("folder", "is a folder"),
    ],
)
def test_recommend_names_what_is_wrong_with_the_histories(walked, tmp_path, content, said):
    place = tmp_path / "histories.jsonl"
    if content == "folder":
        place.mkdir()
    elif content is not None:
        place.write_bytes(content)
    with pytest.raises(DataError, match=said):
        recommend(walked[0] / "run", histories=place, out=tmp_path / "no", k=3)
    assert not (tmp_path / "no").exists()


def test_recommend_counts_items_it_never_saw(walked, tmp_path, messages):
    (tmp_path / "histories.jsonl").write_text('{"history": [100, 999]}\n{"history": [998]}\n')
    recommend(walked[0] / "run", histories=tmp_path / "histories.jsonl", out=tmp_path / "lists", k=3)
    assert messages("localpolicy.serving.recommend") == [
        "2 of 3 items of the histories are not in the policy's catalogue and were left out."
    ]


def test_a_path_without_permission_is_an_error(walked, tmp_path, monkeypatch, capsys):
    def forbidden(*given, **options):
        raise PermissionError(13, "Permission denied", "somewhere/lists")

    monkeypatch.setattr("localpolicy.serving.recommend.whole_file", forbidden)
    monkeypatch.setattr("localpolicy.cli.main.exit_on_closed_pipe", lambda: None)
    (tmp_path / "x").write_text('{"history": [100]}\n')
    words = ["lpi", "recommend", walked[0] / "run", "--histories", tmp_path / "x", "--out", tmp_path / "lists"]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "lpi: somewhere/lists: Permission denied. Check the path and who may read or write it.\n"
    )


def test_recommend_leaves_with_2_for_a_mistake(walked, tmp_path):
    run = walked[0] / "run"
    assert "does not exist" in here("recommend", run, "--histories", tmp_path / "x", "--out", "no", code=2).stderr
    (tmp_path / "x").write_text('{"history": [100]}\n')
    done = here("recommend", run, "--histories", tmp_path / "x", "-k", 3, "--out", tmp_path, code=2)
    assert "is a folder; expected the name of a file" in done.stderr
