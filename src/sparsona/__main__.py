"""``python -m sparsona`` is the command line."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while the libraries load ends as quietly as later on."""
    try:
        from sparsona.cli import main as start
    except KeyboardInterrupt:
        sys.exit("error: stopped")
    start()


if __name__ == "__main__":
    main()
