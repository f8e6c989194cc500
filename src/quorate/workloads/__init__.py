"""Things to train, each in a folder of its own: data, model, loss and quality. Listing them imports none of them."""

from __future__ import annotations

from typing import Any

from quorate.core.registry import Registry
from quorate.core.workload import Workload

workloads: Registry[type[Workload[Any]]] = Registry(
    "workload",
    {
        "cifar10": "quorate.workloads.cifar10.workload:Cifar10",
        "digits": "quorate.workloads.digits.workload:Digits",
        "hyperplane": "quorate.workloads.hyperplane.workload:Hyperplane",
        "least-squares": "quorate.workloads.least_squares.workload:LeastSquares",
        "stdlib-bytes": "quorate.workloads.stdlib_bytes.workload:StdlibBytes",
        "stdlib-functions": "quorate.workloads.stdlib_functions.workload:StdlibFunctions",
        "ucf101-features": "quorate.workloads.ucf101_features.workload:Ucf101Features",
    },
)
