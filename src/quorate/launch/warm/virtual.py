"""A request for a run in a virtual world, carried out in this process."""

from __future__ import annotations

import os

from quorate.launch.warm.request import RunRequest, VirtualRun


def run_request(request: RunRequest, virtual: VirtualRun) -> int:
    """Return the exit status, as `run_script`. The shared environment has only the variables asked for."""
    from quorate.launch.virtual.run import run_script

    for name in [name for name in os.environ if name.startswith("QUORATE_")]:
        del os.environ[name]
    os.environ["QUORATE_RUN"] = str(request.folder.resolve())
    os.environ.update(request.overrides.environment())
    if request.servers:
        os.environ["QUORATE_SERVERS"] = str(request.servers)
    return run_script(
        request.script,
        request.arguments,
        request.size,
        joiners=virtual.joiners + request.servers,
        seed=virtual.seed,
        compute=virtual.compute_model(),
        network=virtual.network(),
        run_dir=request.folder,
    )
