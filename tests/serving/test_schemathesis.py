"""Requests generated from the OpenAPI document, right and wrong ones: each answer is one that the document promises."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from live import serving

pytest.importorskip("schemathesis")

COMMAND = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"]
# A well-formed question may still make no sense to this catalogue (an item of another type, a request nobody made).
# The document promises 422 or 404 for it, so "what fits the schema is accepted" is no promise of ours.
UNPROMISED = "positive_data_acceptance"


@pytest.mark.parametrize("served", ["an export", "a layer"])
def test_every_answer_is_one_that_the_document_promises(served, exported, layer, tmp_path):
    with serving(exported.folder if served == "an export" else layer, tmp_path / "log.db") as server:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        options = ["--max-examples", "30", "--seed", "0", "--generation-deterministic", "--no-color", "--workers", "1"]
        done = subprocess.run(
            [*COMMAND, address, *options, "--exclude-checks", UNPROMISED],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(*re.findall(r".*generated.*", done.stdout))
    generated = re.search(r"(\d[\d,]*) generated", done.stdout)
    assert generated and int(generated[1].replace(",", "")) > 300, done.stdout[-2000:]
