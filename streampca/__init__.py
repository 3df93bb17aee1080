"""Out-of-core PCA and its relatives: exact, in as few passes as possible, in planned memory."""

from streampca.imported import public_names
from streampca.registration import register_with_xarray

__getattr__, __dir__, __all__ = public_names(__name__)  # of __init__.pyi

register_with_xarray()
