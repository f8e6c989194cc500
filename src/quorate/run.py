"""`python -m quorate.run [--strategy NAME:key=value,...] SCRIPT [ARGS]`: a worker of a script that is written for DDP.

For launchers that start the workers themselves: `torchrun --nproc-per-node 2 -m quorate.run --strategy eager-solo
train.py`. Under srun and mpirun, the script finds the variables that torchrun would set. The variables
`QUORATE_STRATEGY` and `QUORATE_SETTINGS` say the same as `--strategy`; `-m MODULE` runs a module.
"""

from __future__ import annotations

import sys

from quorate.core.script_errors import OneSentence
from quorate.launch.takeover.starting import choose, take_over_if_asked, take_variables_of_torchrun
from quorate.launch.warm.script import live_as_main


def main() -> None:
    """Run the script as `__main__`."""
    sys.excepthook = OneSentence(names_line=False)
    words = sys.argv[1:]
    if words[:1] == ["--strategy"] and len(words) > 1:
        from quorate.cli.options import strategy_from

        choose(*strategy_from(words[1]))
        words = words[2:]
    is_module = words[:1] == ["-m"]
    script, *arguments = words[1:] if is_module else words or sys.exit(__doc__)
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of `-m`
    take_variables_of_torchrun()
    take_over_if_asked()
    live_as_main(script, arguments, is_module=is_module)


if __name__ == "__main__":
    main()
