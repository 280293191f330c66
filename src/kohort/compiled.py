"""The one switch between compiled modules and their specification in Python.

`KOHORT_PURE=1` in the environment asks for Python everywhere. A build without a compiled module
falls back to Python for that module alone. `kohort doctor` lists what is in use.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

PURE: Final = os.environ.get("KOHORT_PURE") == "1"
"""True when the environment asks for Python everywhere."""


def is_compiled(module: str) -> bool:
    """Whether to import the compiled `module` instead of its Python twin.

    Args:
        module: the dotted name of an extension module, as `kohort.records._kernel`.
    """
    return not PURE and find_spec(module) is not None


def implementation(module: str) -> str:
    """`cython` or `python`: which of the two `is_compiled` chooses."""
    return "cython" if is_compiled(module) else "python"
