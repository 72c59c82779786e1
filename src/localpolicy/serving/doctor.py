"""`doctor`: what this installation has, what it lacks, and how to get it. Imports only what is always there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localpolicy.results import Result
from localpolicy.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

HEADS = ("what", "state", "details")
REQUIRED = (
    "torch", "numpy", "pyarrow", "scipy", "duckdb", "pydantic", "typer", "pyyaml", "safetensors", "rich", "jinja2"
)  # fmt: skip
EXTRAS = {  # those for users, as pyproject.toml has them
    "report": ("altair", "vl-convert-python"),
    "spark": ("pyspark",),
    "serve": ("fastapi", "uvicorn", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "psycopg", "prometheus-client"),
    "lakes": ("deltalake", "pyiceberg"),
    "excel": ("python-calamine",),
    "sweep": ("optuna",),
    "rank": ("lightgbm",),
    "track": ("tensorboard",),
    "mlflow": ("mlflow",),
    "trace": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}


def remedy(module: str | None) -> str | None:
    """Return how to install a missing module of one of our extras; None for any other module."""
    package = {"yaml": "pyyaml", "sklearn": "scikit-learn", "opentelemetry": "opentelemetry-sdk"}.get(
        name := (module or "").partition(".")[0], name.replace("_", "-")
    )
    if package in REQUIRED:
        return f"this needs {name}, which an installation that only serves leaves out: pip install localpolicy."
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return None if extra is None else f"this needs {name}: pip install 'localpolicy[{extra}]'."


def _found(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB of memory"
    except (ValueError, OSError):
        return "memory unknown"


def _java() -> tuple[str, str]:
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None or shutil.which(path) is None:
        return "missing", "needed by --engine spark alone: install a Java 17 runtime"
    printed = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    return "found", printed.splitlines()[0] if printed else path


def _devices() -> list[tuple[str, str, str]]:
    # The one slow line: importing torch is the only honest way to ask what it can use.
    if _found("torch") is None:
        return []
    import torch

    rows = [("cpu", "found", f"{torch.get_num_threads()} threads, {_memory()}")]
    if not torch.cuda.is_available():
        built = "this torch is a CPU build" if torch.version.cuda is None else "torch sees no device: check the driver"
        rows.append(("cuda", "missing", f"not needed; {built}"))
        return rows
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        rows.append((f"cuda:{index}", "found", f"{device.name}, {device.total_memory / 2**30:.0f} GiB"))
    triton = _found("triton")
    rows.append(("triton", "found" if triton else "missing", triton or "comes with CUDA builds of torch"))
    from localpolicy.catalogue import fused

    lacks = fused.missing()
    rows.append(
        ("fused kernels", "missing" if lacks else "found", lacks or "chosen for CUDA runs (train.catalogue=auto)")
    )
    return rows


@dataclass(frozen=True, repr=False)
class Doctor(Result):
    """Result of `doctor`: name, state (found, missing, or MISSING if required) and details of each part."""

    rows: list[tuple[str, str, str]]

    @property
    def healthy(self) -> bool:
        """Whether every required part is installed."""
        return all(state != "MISSING" for _, state, _ in self.rows)

    def summary(self) -> str:
        """Sentence that names the missing required parts, or says that there are none."""
        lacking = [name for name, state, _ in self.rows if state == "MISSING"]
        return f"missing: {', '.join(lacking)}" if lacking else "all that is needed is here"

    def to_dict(self) -> dict[str, Any]:
        """Return state and details of each part by name."""
        return {name: {"state": state, "details": details} for name, state, details in self.rows}

    def to_arrow(self) -> pa.Table:
        """Return a table with one row for each part."""
        import pyarrow as pa

        return pa.Table.from_pylist([dict(zip(HEADS, row, strict=True)) for row in self.rows])

    def __str__(self) -> str:
        return "\n".join(f"{name:18} {state:8} {details}" for name, state, details in self.rows)


def doctor() -> Doctor:
    """Look for versions, devices and extras; return what is found, what is missing and how to get it."""
    rows = [
        ("localpolicy", "found", __version__),
        ("python", "found", f"{platform.python_version()} ({sys.executable})"),
    ]
    for package in REQUIRED:
        version = _found(package)
        rows.append((package, "found" if version else "MISSING", version or f"pip install '{package}'"))
    rows += _devices()
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if _found(package) is None]
        here = ", ".join(f"{package} {_found(package)}" for package in packages if package not in missing)
        remedy = f"pip install 'localpolicy[{extra}]' (lacks {', '.join(missing)})"
        rows.append((f"extra: {extra}", "missing" if missing else "found", remedy if missing else here))
    rows.append(("java", *_java()))
    return Doctor(rows)
