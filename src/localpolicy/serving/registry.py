"""`register`: records a run, its measurements and its export in MLflow; the gate alone moves the alias `champion`.

The export becomes a model that is read from its files: nothing is pickled (see `mlflow_model`). This package's source
goes with it, and the other packages are named by version: whoever loads the model fetches nothing under our name.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from localpolicy.errors import ConfigError, DataError, LocalPolicyError
from localpolicy.runs.run import Run
from localpolicy.runtime.files import read_json
from localpolicy.serving.exports import read_export, read_items
from localpolicy.serving.service import is_export_of

CHAMPION = "champion"
LONGEST = 500  # characters of a parameter that MLflow keeps
REQUIRED = ("numpy", "onnxruntime", "pydantic")  # all that `Recommender` imports
ANSWERS = ("deploy", "test online", "do not deploy", "cannot tell", "nothing to decide")


def register(
    run: Path | str,
    *,
    name: str,
    export: Path | str | None = None,
    gate: Path | str | None = None,
    uri: str | None = None,
) -> dict[str, Any]:
    """Log a finished run, register its export as a new version of the model `name`, and return their ids.

    `gate` is what `lpi gate --json` wrote: if it says deploy, the version gets the alias champion, and else no
    alias moves. `uri` is MLflow's server or folder, unless its own variable names one.
    """
    finished, (answer, judged) = Run(run), (None, None) if gate is None else _answer(Path(gate))
    if not finished.finished:
        raise ConfigError(f"{run} is not a finished run: train it first.")
    if answer is not None and export is None:
        raise ConfigError("a gate's answer is about a model: name the export too (--export), or leave --gate out.")
    described = None if export is None else read_export(Path(export))
    if export is not None and not is_export_of(Path(export), finished.folder):
        raise ConfigError(
            f"{export} is not an export of {run}: export it again, or name the run that it was made from."
        )
    if gate is not None and judged != finished.manifest["policy_sha256"]:
        named = "another digest" if judged else "no digest, as no gate of a run writes it"
        raise ConfigError(f"{gate} is not about {run}: its policy has {named}. Judge it: lpi gate {run} --json {gate}.")
    mlflow = _mlflow()
    if uri is not None:
        mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(name)
    with mlflow.start_run(run_name=finished.folder.resolve().name) as active:
        mlflow.log_params({key: str(value)[:LONGEST] for key, value in _flat(finished.config.model_dump()).items()})
        for step, entry in enumerate(_entries(finished.folder / "metrics.jsonl")):
            mlflow.log_metrics(entry, step=step)
        mlflow.log_artifact(str(finished.folder / "manifest.json"))
        mlflow.set_tags({"localpolicy.policy_sha256": finished.manifest["policy_sha256"],
                         **({} if answer is None else {"localpolicy.gate": answer})})  # fmt: skip
        if gate is not None:
            mlflow.log_artifact(str(gate))
        made: dict[str, Any] = {"run": active.info.run_id, "version": None, "gate": answer, "champion": False}
        if described is not None:
            model = mlflow.pyfunc.log_model(
                name="policy", python_model=str(Path(__file__).with_name("mlflow_model.py")),
                artifacts={"export": str(Path(str(export)).resolve())}, registered_model_name=name,
                metadata={"policy": described.version}, model_config={"policy": described.version},
                signature=_signature(mlflow, read_items(Path(str(export)), described)[:1]),
                code_paths=[str(Path(__file__).parents[1])],
                pip_requirements=[f"{package}=={version(package)}" for package in REQUIRED],
            )  # fmt: skip
            made["version"] = str(model.registered_model_version)
    if answer == "deploy":
        mlflow.MlflowClient().set_registered_model_alias(name, CHAMPION, made["version"])
        made["champion"] = True
    return made


def _mlflow() -> Any:
    try:
        import mlflow
        import mlflow.pyfunc
    except ImportError:
        raise LocalPolicyError("registering needs MLflow: pip install 'localpolicy[mlflow]'.") from None
    return mlflow


def _signature(mlflow: Any, ids: list[Any]) -> Any:
    """Return the model's signature, with `k`, since MLflow passes on no parameter that a signature does not name."""
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    from localpolicy.serving.mlflow_model import K  # which imports MLflow

    items, texts = Array("long" if isinstance(ids[0], int) else "string"), Array("string")
    return mlflow.models.ModelSignature(
        inputs=Schema([ColSpec(items, "history"), ColSpec(texts, "events", required=False)]),
        outputs=Schema(
            [ColSpec(items, "items"), ColSpec(Array("double"), "probabilities"), ColSpec("string", "policy")]
        ),
        params=ParamSchema([ParamSpec("k", "long", K)]),
    )


def _answer(path: Path) -> tuple[str, str | None]:
    """Read a gate's answer, and the digest of the judged weights if the file has it."""
    content = read_json(path)
    answer = content.get("answer") if isinstance(content, dict) else None
    if answer not in ANSWERS:
        raise DataError(f"{path} holds no gate's answer; expected what 'lpi gate --json' writes.")
    if answer == "deploy" and content.get("ground", "randomised") != "randomised":
        raise DataError(
            f"{path} says deploy by propensities that are '{content['ground']}', as no gate does: expected what "
            "'lpi gate --json' wrote."
        )
    return str(answer), content.get("policy_sha256")


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _entries(path: Path) -> list[dict[str, float]]:
    """Read the numbers of each line of a JSON-lines file, under names that MLflow accepts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = []
    for line in lines:
        numbers = {key: value for key, value in _flat(json.loads(line)).items()
                   if isinstance(value, int | float) and not isinstance(value, bool)}  # fmt: skip
        kept.append({key.replace("@", "_at_").replace("%", "percent"): float(value) for key, value in numbers.items()})
    return kept
