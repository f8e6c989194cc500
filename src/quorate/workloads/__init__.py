"""Things to train, each in a file of its own: data, model, loss and quality. Listing them imports none of them."""

from __future__ import annotations

from typing import Any

from quorate.core.registry import Registry
from quorate.core.workload import Workload

workloads: Registry[type[Workload[Any]]] = Registry(
    "workload",
    {
        "cifar10": "quorate.workloads.cifar10:Cifar10",
        "digits": "quorate.workloads.digits:Digits",
        "hyperplane": "quorate.workloads.hyperplane:Hyperplane",
        "imagenet": "quorate.workloads.imagenet:ImageNet",
        "least-squares": "quorate.workloads.least_squares:LeastSquares",
        "stdlib-bytes": "quorate.workloads.stdlib_bytes:StdlibBytes",
        "stdlib-functions": "quorate.workloads.stdlib_functions:StdlibFunctions",
        "translation": "quorate.workloads.translation:Translation",
        "ucf101-features": "quorate.workloads.ucf101_features:Ucf101Features",
    },
)
