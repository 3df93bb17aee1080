"""Out-of-core PCA and its relatives: exact, in as few passes as possible, in planned memory."""

import logging
from functools import partial
from importlib import import_module

from streampca.imported import public_names, when_imported

__getattr__, __dir__, __all__ = public_names(__name__)  # of __init__.pyi

# The accessor ``da.streampca``, once streampca and xarray are imported, in any order.
when_imported("xarray", partial(import_module, "streampca.xarray"))

# Loggers are ``streampca.*``; where nobody listens, nothing is printed.
logging.getLogger(__name__).addHandler(logging.NullHandler())
