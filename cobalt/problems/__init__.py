"""Problems and their tests: `Problem`, `TestSuite`, and loading them from a file."""
