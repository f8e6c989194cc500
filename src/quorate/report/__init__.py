"""Measurements of runs, for people and programs, read from nothing but the records.

Called, `quorate.report(run)` writes the report of a run and shows it in a notebook: see `quorate.notebook.reporting`.
"""

from quorate.core.callable_module import let_call

let_call(__name__, "quorate.notebook.reporting", "report")
