"""``python -m streampca``. Modules are not looked up in the current folder, unless streampca is."""

import os
import sys

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not sys.flags.safe_path and os.path.realpath(sys.path[0] or ".") != os.path.realpath(HOME):
    del sys.path[0]  # Python puts the current folder there

from streampca.cli.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
