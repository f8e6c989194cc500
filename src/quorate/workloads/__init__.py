"""Things to train, each in a folder of its own: data, model, loss and quality. Listing them imports none of them."""

from __future__ import annotations

from typing import Any

from quorate.core.registry import Registry
from quorate.core.workload import Workload

workloads: Registry[type[Workload[Any]]] = Registry(
    "workload",
    {
        "least-squares": "quorate.workloads.least_squares.workload:LeastSquares",
        "stdlib-functions": "quorate.workloads.stdlib_functions.workload:StdlibFunctions",
    },
)
