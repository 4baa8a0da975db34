"""The typed functions behind every command, one module per group; ``import sparsona`` offers most of them by name."""
