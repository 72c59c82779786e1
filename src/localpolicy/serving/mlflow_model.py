"""An export as a model of MLflow, which loads this file as it is: histories in, lists with their probabilities out."""

from __future__ import annotations

from typing import Any

from localpolicy.serving.recommender import Recommender

try:
    import mlflow
    from mlflow.pyfunc import PythonModel
except ImportError:  # whoever reads all modules of this package need not have it
    mlflow, PythonModel = None, object

K = 10


class Served(PythonModel):  # type: ignore[misc,unused-ignore]
    """Answers like `lpi serve`, but draws nothing and logs nothing: the k best."""

    def load_context(self, context: Any) -> None:
        """Open the export."""
        self.recommender = Recommender(context.artifacts["export"])

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # MLflow takes hints as a schema
        """`model_input`: histories of item ids, or rows with `history` and perhaps `events`; `params`: k."""
        rows = model_input.to_dict("records") if hasattr(model_input, "to_dict") else list(model_input)
        asked = [row if isinstance(row, dict) else {"history": row} for row in rows]
        k, answers = int((params or {}).get("k", K)), []
        for row in asked:
            events = row.get("events")
            found = self.recommender.recommend([list(row["history"])], k, sample=False,
                                               events=None if events is None else [list(events)])  # fmt: skip
            answers.append({"items": found.items[0], "policy": self.recommender.version})
        return answers


if mlflow is not None:
    mlflow.models.set_model(Served())
