"""An export as a model of MLflow, which loads this file as it is: histories in, lists with their probabilities out."""

from __future__ import annotations

from typing import Any

import numpy as np

from localpolicy.errors import RunError
from localpolicy.serving.recommender import Recommender

try:
    import mlflow
    from mlflow.pyfunc import PythonModel
except ImportError:  # whoever reads all modules of this package need not have it
    mlflow, PythonModel = None, object

K = 10


class Served(PythonModel):  # type: ignore[misc,unused-ignore]
    """The export's best k items: it answers like `lpi serve`, but draws nothing and logs nothing."""

    def load_context(self, context: Any) -> None:
        """Open the export; raise RunError unless its version is the registered one."""
        self.recommender = Recommender(context.artifacts["export"])
        registered = (context.model_config or {}).get("policy", self.recommender.version)
        if self.recommender.version != registered:
            raise RunError(f"the model's export is {self.recommender.version}; {registered} was registered.")

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # MLflow takes hints as a schema
        """`model_input`: rows with `history`, and `events` if wanted, or histories alone; `params`: k."""
        rows = model_input.to_dict("records") if hasattr(model_input, "to_dict") else list(model_input)
        asked = [row if isinstance(row, dict) else {"history": row} for row in rows]
        k = int((params or {}).get("k", K))
        histories = [_plain(row["history"]) for row in asked]
        events = [
            [self.recommender.default_event] * len(history) if _is_absent(row.get("events")) else _plain(row["events"])
            for row, history in zip(asked, histories, strict=True)
        ]
        found = self.recommender.recommend(histories, k, events=events, sample=False)
        probabilities = np.exp(self.recommender.log_probabilities(histories, found.indices, events=events))
        version = self.recommender.version
        return [{"items": items, "probabilities": row, "policy": version}
                for items, row in zip(found.items, probabilities.tolist(), strict=True)]  # fmt: skip


def _plain(values: Any) -> list[Any]:
    """Convert a frame's values to a list of plain Python values."""
    return np.asarray(values).tolist() if isinstance(values, np.ndarray) else list(values)


def _is_absent(events: Any) -> bool:
    """Whether a row has no events: a frame's empty cell is None or NaN."""
    return events is None or isinstance(events, float)


if mlflow is not None:
    mlflow.models.set_model(Served())
