"""``python -m streampca.cli``."""

import sys

from streampca.cli.main import main

sys.exit(main())
