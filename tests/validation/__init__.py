"""Each method beside the tool that its field trusts: ``python -m tests.validation``.

A comparison is a function that yields ours and theirs; the decorator puts it on the list.
"""

from tests.validation import by_climate as by_climate
from tests.validation import by_genetics as by_genetics
from tests.validation import by_python as by_python
from tests.validation import by_r as by_r
from tests.validation import published as published
from tests.validation.comparing import COMPARISONS as COMPARISONS
