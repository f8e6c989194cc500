"""Logging in virtual workers: records know their rank, and a handler serves the worker that added it."""

from __future__ import annotations

import logging
from typing import Any

from quorate.launch.virtual.patching import StandIns, here


class OwnRecords(logging.Filter):
    """Lets a record of rank r pass the handlers that r added; those of the first rank to add one, if r added none.

    The loggers are the process's. Without this a script that adds a handler would write every line once per worker.
    """

    def __init__(self, adders: list[int], rank: int) -> None:
        super().__init__()
        self._adders = adders
        self._rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is one of this worker's."""
        rank = getattr(record, "rank", None)
        return rank is None or self._rank == (rank if rank in self._adders else self._adders[0])


def put_ranks_in_logs(stand_ins: StandIns) -> None:
    """Every record has an attribute `rank` (None outside of workers); handlers that workers added go in the end."""
    factory = logging.getLogRecordFactory()
    adders: dict[logging.Logger, list[int]] = {}
    added: list[tuple[logging.Logger, logging.Handler]] = []

    def make(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = factory(*arguments, **named)
        strand = here()
        record.rank = None if strand is None else strand.rank
        return record

    def add_handler(original: Any, logger: logging.Logger, handler: logging.Handler) -> None:
        strand = here()
        assert strand is not None
        ranks = adders.setdefault(logger, [])
        if strand.rank not in ranks:
            ranks.append(strand.rank)
        handler.addFilter(OwnRecords(ranks, strand.rank))
        added.append((logger, handler))
        original(logger, handler)

    def remove_all() -> None:
        for logger, handler in added:
            logger.removeHandler(handler)
            handler.close()

    logging.setLogRecordFactory(make)
    stand_ins.on_exit(lambda: logging.setLogRecordFactory(factory))
    stand_ins.put(logging.Logger, "addHandler", add_handler)
    stand_ins.on_exit(remove_all)
