"""Messages on stderr: lines for people, JSON for machines; steps only where a verb asks for them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from localpolicy.cli.main import main
from localpolicy.cli.output import PREPARING, show_messages, show_steps
from localpolicy.runtime.progress import EPOCH_LINES


@pytest.fixture(autouse=True)
def silence():
    """Remove the handlers of the package's logger after a test."""
    yield
    logger = logging.getLogger("localpolicy")
    logger.handlers.clear()
    for name in ("localpolicy", EPOCH_LINES, PREPARING):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_people_get_the_message_alone(capsys):
    show_messages()
    show_messages()  # again: no line twice
    logging.getLogger("localpolicy.training.jobs").info("%s: trained", "one")
    logging.getLogger("localpolicy.data.splits").warning("too few")
    logging.getLogger("localpolicy.cli.main").error("no such run")
    found = capsys.readouterr()
    assert found.err == "one: trained\nnote: too few\nlpi: no such run\n" and found.out == ""


def test_steps_are_shown_where_they_are_asked_for(capsys):
    show_messages()
    logging.getLogger(EPOCH_LINES).info("epoch 1")
    logging.getLogger(PREPARING).info("filtering")
    assert capsys.readouterr().err == ""
    show_steps(EPOCH_LINES)
    logging.getLogger(EPOCH_LINES).info("epoch 2")
    logging.getLogger(PREPARING).info("filtering")
    assert capsys.readouterr().err == "epoch 2\n"


def test_machines_get_one_object_a_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["lpi", "--log-json", "evaluate", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert left.value.code == 2 and said.keys() == {"time", "level", "logger", "message"}
    assert (said["level"], said["logger"]) == ("error", "localpolicy.cli.main") and "is not a run" in said["message"]
