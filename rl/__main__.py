"""`python -m rl <verb>`: the same as the command `limosa`."""

import sys

from rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
