"""End of the children of workers with a killed launcher: a shell waits for its end, and kills their groups.

The kernel ends the workers themselves (`orphans`), and not what they have started: subprocesses of the script, the
processes of a DataLoader. A shell of some hundred kilobytes does, which reads from a pipe that the launcher alone
writes to, and which ends with it.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from types import TracebackType

_SHELL = """trap '' HUP INT TERM
while read -r what group; do
  case $what in
    begun) begun="$begun $group" ;;
    over) over="$over $group " ;;
  esac
done
for group in $begun; do
  case $over in
    *" $group "*) ;;
    *) kill -9 "-$group" 2>/dev/null ;;
  esac
done
"""
_LEAVE = 2.0


def end_of_input(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a process whose stdin is a pipe leave at its end; it has so many seconds, and is killed then."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Guard:
    """A context: process groups that have begun and are not over when this process is killed are killed then.

    Where no shell can be started nothing is guarded. Leaving the context kills nobody.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SHELL],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for group in sorted(self._groups):
            self.over(group)
        if self._shell is None:
            return
        end_of_input(self._shell, _LEAVE)

    def begun(self, group: int) -> None:
        """The process group of a worker is there; a second call does nothing."""
        if group not in self._groups:
            self._groups.add(group)
            self._tell("begun", group)

    def over(self, group: int) -> None:
        """Nobody is left in it."""
        if group in self._groups:
            self._groups.discard(group)
            self._tell("over", group)

    def _tell(self, change: str, group: int) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            with suppress(OSError):  # somebody has killed it
                self._shell.stdin.write(f"{change} {group}\n".encode())
