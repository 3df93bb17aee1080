"""``python -m streampca``."""

import sys

from streampca.cli.commands import main

sys.exit(main())
