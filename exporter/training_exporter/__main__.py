"""`python -m training_exporter` is the command `training-exporter`."""

import sys

from training_exporter.cli import main

sys.exit(main())
