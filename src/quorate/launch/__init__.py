"""Starting workers and joining them, real and virtual.

Called, `quorate.launch(function, n=4)` starts workers that call a function: see `quorate.notebook.launching`.
"""

from quorate.core.callable_module import let_call

let_call(__name__, "quorate.notebook.launching", "launch")
