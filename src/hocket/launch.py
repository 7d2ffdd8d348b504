"""`python -m hocket.launch`: starts a script of one's own as several learners on one host."""

import sys

from hocket.runtime.launch.script import main

if __name__ == "__main__":
    sys.exit(main())
