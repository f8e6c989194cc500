"""Gates: opened once, waited for by several threads."""

from __future__ import annotations

import threading

from quorate.wire.boxes import Gate


def test_it_is_closed_until_it_is_opened() -> None:
    gate = Gate()
    assert (gate.is_open, gate.wait(0.0), gate.wait(-1.0)) == (False, False, False)
    gate.open()
    assert (gate.is_open, gate.wait(0.0), gate.wait(5.0)) == (True, True, True)


def test_all_threads_that_wait_go_on() -> None:
    gate, passed = Gate(), []
    threads = [threading.Thread(target=lambda: passed.append(gate.wait(60.0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(60.0)
    assert passed == [True] * 4
