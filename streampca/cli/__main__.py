"""``python -m streampca.cli``."""

import sys

from streampca.cli.commands import main

sys.exit(main())
