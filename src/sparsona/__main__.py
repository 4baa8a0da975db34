"""``python -m sparsona`` is the command line."""

from sparsona.cli import main

if __name__ == "__main__":
    main()
