"""Pure functions over flat vectors: no input or output, no logging, no globals."""
