"""Exit codes of mqd's processes, beside 0, 1 for an explained error, and 2 for a wrong option."""

from __future__ import annotations

from typing import Final

#: An internal error (EX_SOFTWARE).
INTERNAL_ERROR: Final = 70
#: A worker is out of its cluster, and cannot be started again.
OUT: Final = 69
#: A worker wants to be started again.
AGAIN: Final = 75
