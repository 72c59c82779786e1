"""An export gives what PyTorch gives, on every backbone, and is refused where it does not or was altered."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from serve_runs import small_run

from localpolicy.cli.doctor import verify
from localpolicy.cli.runs import export as command
from localpolicy.data.store import Prepared
from localpolicy.errors import ConfigError, DataError, RunError
from localpolicy.model.deployable import Origin
from localpolicy.model.network import ModelConfig, Network
from localpolicy.model.policy import Policy
from localpolicy.model.towers import Towers
from localpolicy.runs.run import Run
from localpolicy.runtime.files import sealed, write_json
from localpolicy.runtime.folders import MADE
from localpolicy.serving import export as exporting
from localpolicy.serving.export import export
from localpolicy.serving.exports import write_description
from localpolicy.serving.graph import quantised, write_graph
from localpolicy.serving.recommender import Recommender
from localpolicy.serving.session import GraphSession

HISTORIES = [[], [100], [103, 104, 100, 111], [100 + n % 12 for n in range(30)], [999, 105, "no item"]]
EVENTS = [[], ["click"], ["none", "click", "purchase", "none"], ["none", "click"] * 15, ["click", "purchase", "none"]]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits).double(), dim=1).numpy()


def same(run, found, beta=None) -> None:
    expected = run.policy(beta=beta).log_probabilities(HISTORIES, EVENTS).double().numpy()
    assert np.abs(log_softmax(found.logits(HISTORIES, EVENTS, beta=beta)) - expected).max() < 1e-5
    assert np.abs(expected - expected[0]).max() > 1e-2, "histories matter, or nothing was compared"


def test_a_gru_and_its_dial_give_what_pytorch_gives(small, tmp_path):
    run = small_run(small, tmp_path / "run", backbone="gru", objective="sqn", epochs=2)
    found = export(run.folder, out=tmp_path / "export")
    for beta in (None, 0.2):
        same(run, found, beta)


def test_a_policy_without_a_critic_has_no_dial(small, tmp_path):
    found = export(small_run(small, tmp_path / "run").folder, out=tmp_path / "export")
    with pytest.raises(ConfigError, match="a mle policy has no dial"):
        found.logits([[100]], beta=1.0)


@pytest.mark.parametrize(("blocks", "heads", "events"), [(1, 1, False), (3, 4, True)])
def test_sasrec_is_written_as_it_is_trained(tmp_path, blocks, heads, events):
    """Histories of every length, in one rectangle: the state of the last real token is PyTorch's."""
    torch.manual_seed(0)
    config = ModelConfig(width=8, blocks=blocks, heads=heads, event_embeddings=events)
    network = Network(config, items=12, events=2, length=6)
    for parameter in network.parameters():  # biases and norms that change nothing would hide their loss
        parameter.data += 0.3 * torch.randn_like(parameter)
    items = pa.table({"index": np.arange(12), "item_id": np.arange(12), "count": np.ones(12, np.int64)})
    policy = Policy(network.eval(), Origin("mle", "impressions", ["none", "click"], None), items)
    write_graph(policy, tmp_path / "policy.onnx")
    histories = [list(range(length)) for length in range(6)]
    given = [["click", "none", "click", "click", "none"][:length] for length in range(6)]
    rows = np.array([[-1, *history, *[3] * (5 - len(history))] for history in histories])
    codes = np.array([[0, *[name == "click" for name in names], *[1] * (5 - len(names))] for names in given], np.int64)
    found = GraphSession(tmp_path / "policy.onnx", 1).run({"items": rows, "events": codes, "lengths": np.arange(1, 7)})
    expected = policy.log_probabilities(histories, given).double().numpy()
    assert np.abs(log_softmax(found) - expected).max() < 1e-5


def test_towers_of_convolutions_and_their_dial_give_what_pytorch_gives(small, tmp_path, monkeypatch):
    """Local policy improvement in closed form: μ̂ and its critic are towers of their own."""
    run = small_run(small, tmp_path / "run", objective="lpi_rl", backbone="convolution", epochs=2)
    assert isinstance(run.policy().network, Towers)
    # A critic that was silenced in so short a training would leave nothing to dial.
    monkeypatch.setattr(Run, "refuse_altered", lambda self, *names: None)
    found = export(_resaved(run, tmp_path / "again").folder, out=tmp_path / "export")
    for beta in (None, 0.2, 5.0):
        same(Run(tmp_path / "again"), found, beta)
    assert np.abs(found.logits(HISTORIES, EVENTS, beta=0.2) - found.logits(HISTORIES, EVENTS, beta=5.0)).max() > 1e-2


def _resaved(run: Run, folder) -> Run:
    shutil.copytree(run.folder, folder)
    about = json.loads((folder / "policy.json").read_text())
    about["network"]["slope"] = 0.7
    (folder / "policy.json").write_text(json.dumps(about))
    return Run(folder)


@pytest.mark.parametrize("beta", [None, 0.1, 3.0])
def test_the_policy_and_its_dial_give_what_pytorch_gives(run, exported, beta):
    same(run, exported, beta)


def test_an_infinite_beta_is_the_logging_policy(run, exported):
    expected = run.policy().logging().log_probabilities(HISTORIES, EVENTS).double().numpy()
    assert np.abs(log_softmax(exported.logits(HISTORIES, EVENTS, beta=np.inf)) - expected).max() < 1e-5


def test_one_history_or_many_is_the_same(exported):
    together = exported.logits(HISTORIES, EVENTS)
    for number, (history, events) in enumerate(zip(HISTORIES, EVENTS, strict=True)):
        np.testing.assert_allclose(exported.logits([history], [events])[0], together[number], atol=1e-5)


def test_the_recommender_needs_no_torch(exported):
    code = (
        "import sys; from localpolicy import Recommender\n"
        f"made = Recommender({str(exported.folder)!r}); made.check()\n"
        "print(made.recommend([[100, 101]], 3, seed=0).items)\n"
        "heavy = {'torch', 'pyarrow', 'duckdb', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{exported.recommend([[100, 101]], 3, seed=0).items}\n"


def test_it_checks_real_histories_and_keeps_some(exported, run):
    samples = exported.description.samples
    assert samples[0].history == [] and len(samples) > 4
    data = Prepared(run.data_folders[0])
    ids = data.catalogue["item_id"].to_pylist()
    real = {tuple(ids[item] for item in data[name].arrays["item"][start:end]) for name in ("train", "test")
            for start, end in pairwise(data[name].offsets)}  # fmt: skip
    assert not real & {tuple(one.history) for one in samples if len(one.history) > 3}, (
        "nobody's history leaves with an export"
    )
    assert exported.description.largest_difference < exported.description.tolerance
    expected = run.policy().recommend([one.history for one in samples], 12, events=[s.events for s in samples])
    assert [one.top for one in samples] == expected.items


def test_a_graph_that_differs_is_refused(small, exported, tmp_path, monkeypatch):
    other = small_run(small, tmp_path / "run", objective="sqn", seed=1)
    stale = lambda policy, path, **kind: shutil.copy(exported.folder / path.name, path)  # noqa: E731
    monkeypatch.setattr(exporting, "write_graph", stale)
    with pytest.raises(RunError, match="differs from PyTorch by"):
        export(other.folder, out=tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("int8", [False, True])
def test_large_weights_lie_in_a_file_of_their_own(run, tmp_path, monkeypatch, int8):
    monkeypatch.setattr("localpolicy.serving.graph.LARGE", 0)
    found = export(run.folder, out=tmp_path / "export", int8=int8)
    assert {"policy.onnx.data", "dial.onnx.data"} <= set(found.description.files)
    (found.folder / "policy.onnx.data").unlink()
    with pytest.raises(RunError, match=r"policy\.onnx\.data is missing"):
        Recommender(found.folder)


# ---------------------------------------------------------------------- rounded rows


@pytest.mark.parametrize("width", [5, 16, 33, 256, 300])
def test_rows_are_rounded_to_the_nearest_of_255_numbers(width):
    weight = np.random.default_rng(0).normal(size=(7, width)).astype(np.float32)
    weight[3] = 0
    rows, scale = quantised(weight)
    again = ((rows.astype(np.float32) - 128) * scale[:, :, None]).reshape(7, -1)
    assert rows.min() >= 1 and not again[:, width:].any()
    assert (np.abs(again[:, :width] - weight) <= np.repeat(scale, rows.shape[2], axis=1)[:, :width] * 0.5001).all()
    np.testing.assert_allclose(np.abs(again[:, :width]).max(1), np.abs(weight).max(1), rtol=1e-6)


def test_rounded_rows_are_a_policy_of_their_own_close_to_the_run(run, exported, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        command(run.folder, tmp_path / "export", int8=True)
    found = Recommender(tmp_path / "export")
    assert f"policy {found.version}" in caplog.text and f"JS {found.description.js:.1e} nats from" in caplog.text
    found.check()
    assert found.int8 and found.version == f"{run.version}-int8" and found.has_dial
    assert 0 < found.description.js < found.description.most_js
    for beta in (None, 0.3):
        own, whole = (made.logits(HISTORIES, EVENTS, beta=beta) for made in (found, exported))
        assert 1e-5 < np.abs(log_softmax(own) - log_softmax(whole)).max() < 0.1
        alone = [found.logits([one], [given], beta=beta)[0] for one, given in zip(HISTORIES, EVENTS, strict=True)]
        np.testing.assert_allclose(alone, own, atol=1e-5)


def test_rounded_rows_that_move_a_policy_far_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "MOST_JS", 1e-9)
    with pytest.raises(RunError, match=r"rounded rows move this policy by JS .* without int8"):
        export(run.folder, out=tmp_path / "export", int8=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["policy.onnx", "items.json", "counts.json"])
def test_an_altered_export_is_refused(exported, tmp_path, name):
    folder = shutil.copytree(exported.folder, tmp_path / "export")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    for opened in (Recommender, verify):
        with pytest.raises(RunError, match=f"{name} was altered"):
            opened(folder)
    (folder / name).unlink()
    with pytest.raises(RunError, match=f"{name} is missing"):
        Recommender(folder)


def test_equal_runs_give_equal_exports(exported, run, tmp_path):
    """And none tells where the code lay that made it."""
    again = export(run.folder, out=tmp_path / "again")
    for name in [path.name for path in exported.folder.iterdir() if path.suffix == ".onnx"]:
        content = (exported.folder / name).read_bytes()
        assert content == (again.folder / name).read_bytes()
        assert b"stack_trace" not in content and b"localpolicy/" not in content


def test_verify_reads_every_file_of_an_export(exported, capsys):
    verify(exported.folder)
    said = capsys.readouterr().out
    files = {path.name for path in exported.folder.iterdir()} - {"export.json", MADE}
    assert files >= {"policy.onnx", "items.json", "counts.json"}
    assert all(name in said for name in files) and f"{len(files)} files are unchanged" in said


@pytest.mark.parametrize(
    "change",
    [{"files": {}}, {"files": None}, {"graphs": ["policy", "other"]}, {"events": 3}, {"version": None}],
    ids=str,
)
def test_a_description_that_names_no_digest_is_refused(exported, tmp_path, change):
    folder = shutil.copytree(exported.folder, tmp_path / "export")
    about = json.loads((folder / "export.json").read_text())
    write_description(folder, {**about, **change})
    for opened in (Recommender, verify):
        with pytest.raises(RunError, match="export.json is not an export's: it was altered"):
            opened(folder)


def test_lists_that_are_not_those_of_the_export_are_refused(exported, tmp_path):
    folder = shutil.copytree(exported.folder, tmp_path / "export")
    about = json.loads((folder / "export.json").read_text())
    about["samples"][1]["top"].reverse()
    write_description(folder, about)
    with pytest.raises(RunError, match="does not give the lists"):
        Recommender(folder).check()


def test_a_folder_that_is_no_export_is_refused(tmp_path):
    with pytest.raises(RunError, match="is not an export"):
        Recommender(tmp_path)
    (tmp_path / "export.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        Recommender(tmp_path)
    (tmp_path / "export.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match="cannot be read"):
        Recommender(tmp_path)
    (tmp_path / "export.json").write_text("[]")
    with pytest.raises(RunError, match="has no format"):
        Recommender(tmp_path)
    (tmp_path / "export.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="has format 99"):
        Recommender(tmp_path)


def test_questions_it_cannot_answer(exported):
    with pytest.raises(DataError, match="no event 'clik'.*did you mean 'click'"):
        exported.logits([[100]], [["clik"]])
    with pytest.raises(DataError, match="has 1 items and 2 events"):
        exported.logits([[100]], [["click", "click"]])
    for beta in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="beta must be at least"):
            exported.logits([[100]], beta=beta)


def test_a_version_is_everything_that_changes_an_answer(run, tmp_path):
    """Weights, the network's numbers (a closed form's β), events, items, their order: each changes the id."""

    def changed(name: str, content=None, table=None, digest: str | None = None) -> str:
        folder = shutil.copytree(run.folder, tmp_path / name)
        if content is not None:
            (folder / "policy.json").write_text(json.dumps(content))
        if table is not None:
            pq.write_table(table, folder / "items.parquet")
        if digest is not None:
            manifest = json.loads((folder / "manifest.json").read_text())
            write_json(folder / "manifest.json", sealed({**manifest, "policy_sha256": digest}))
        return Run(folder).version

    about = json.loads((run.folder / "policy.json").read_text())
    items = pq.read_table(run.folder / "items.parquet")
    other = {**about, "network": {**about["network"], "beta": 0.024}}
    origin = {**about["origin"], "events": about["origin"]["events"][::-1]}
    versions = [
        changed("weights", digest="0" * 64), changed("beta", other), changed("events", {**about, "origin": origin}),
        changed("order", table=items.take(list(range(len(items)))[::-1])),
    ]  # fmt: skip
    assert len({run.version, *versions}) == 1 + len(versions)
    renamed = {**about, "origin": {**about["origin"], "objective": "another"}}
    assert changed("same", renamed, items) == run.version, "the same policy by another road is the same policy"
