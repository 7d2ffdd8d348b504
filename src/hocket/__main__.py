"""`python -m hocket`."""

import sys

from hocket.cli import main

if __name__ == "__main__":
    sys.exit(main())
