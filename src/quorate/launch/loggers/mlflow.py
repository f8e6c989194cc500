"""MLflow: numbers as metrics of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LONGEST = 500
"""Letters of a parameter that the oldest stores take."""


class MlflowRun:
    """A run of the experiment that `MLFLOW_EXPERIMENT_NAME` names, at the place of `MLFLOW_TRACKING_URI`.

    A run that the script has begun is shared, and left open for it.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        begun = mlflow.active_run()
        self._is_ours = begun is None
        if begun is not None:
            self._id: str = begun.info.run_id
            return
        # What `start_run` begins is the process's own run, which the script may want to begin itself.
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=folder.name, tags={"quorate.folder": str(folder)})
        self._id = run.info.run_id
        for key, value in about.items():
            self._client.log_param(self._id, key, json.dumps(value)[:_LONGEST])

    def add(self, name: str, value: float, step: int) -> None:
        self._client.log_metric(self._id, name, value, step=step)

    def close(self, *, is_well: bool) -> None:
        if self._is_ours:
            self._client.set_terminated(self._id, "FINISHED" if is_well else "FAILED")
