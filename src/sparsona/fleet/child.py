"""``python child.py PARENT COMMAND...``: run a command that ends with its parent, even if that is killed."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's background jobs ignore it, but this is how we stop Flower
    if sys.platform == "linux":  # elsewhere a parent that is killed leaves it behind
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)
